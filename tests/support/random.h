// Random numbers for tests: the seed is the whole state, so a failure names how to see it again.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <random>

namespace heddle::testing {

class Random {
 public:
  explicit Random(uint64_t seed) : seed_(seed), engine_(seed) {}

  uint64_t seed() const { return seed_; }

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
  uint64_t seed_;
  std::mt19937_64 engine_;
};

}  // namespace heddle::testing
