// Random numbers for tests: the seed (and the variant) is the whole state, so a failure names how
// to see it again.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <random>

namespace heddle::testing {

class Random {
 public:
  explicit Random(uint64_t seed) : seed_(seed), engine_(seed) {}
  /// One of many variants of what `seed` draws. They agree in all that is drawn from structure():
  /// what changes code, which is slow to compile. The rest, sizes and values, is each one's own.
  Random(uint64_t seed, uint64_t variant)
      : seed_(seed), variant_(variant), structure_(std::make_unique<Random>(seed)) {
    std::seed_seq both{seed, variant};
    engine_.seed(both);
  }

  uint64_t seed() const { return seed_; }
  uint64_t variant() const { return variant_; }
  bool is_variant() const { return structure_ != nullptr; }
  Random& structure() { return structure_ ? *structure_ : *this; }

  /// Uniform in [lo, hi].
  int64_t integer(int64_t lo, int64_t hi) {
    return std::uniform_int_distribution<int64_t>(lo, hi)(engine_);
  }
  double uniform(double lo, double hi) {
    return std::uniform_real_distribution<double>(lo, hi)(engine_);
  }
  double normal() { return std::normal_distribution<double>()(engine_); }
  bool chance(double probability) { return uniform(0, 1) < probability; }
  template <class T>
  T one_of(std::initializer_list<T> values) {
    return values.begin()[integer(0, static_cast<int64_t>(values.size()) - 1)];
  }

 private:
  uint64_t seed_, variant_ = 0;
  std::mt19937_64 engine_;
  std::unique_ptr<Random> structure_;  ///< of variants
};

}  // namespace heddle::testing
