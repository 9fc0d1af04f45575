// Division by a number that the host knows, as a product. Plain numbers: host and device share it.
#pragma once

namespace heddle {

/// What numbers below 2^31 are divided by. kCounted by the host: (n * multiplier) >> shift, where
/// 2^shift / divisor, rounded up, leaves less than a unit of the quotient; else as a division takes
/// it.
template <bool kCounted>
struct Divisor {
  unsigned multiplier, shift;

  static constexpr Divisor of(int divisor) {
    const auto d = static_cast<unsigned long long>(divisor > 1 ? divisor : 1);
    unsigned shift = 31;
    while ((1ull << (shift - 31)) < d) ++shift;
    return {static_cast<unsigned>(((1ull << shift) + d - 1) / d), shift};
  }
  constexpr int quotient(int n) const {
    const unsigned long long product = 1ull * static_cast<unsigned>(n) * multiplier;
    return static_cast<int>(product >> shift);
  }
};
template <>
struct Divisor<false> {
  unsigned divisor;

  static constexpr Divisor of(int divisor) { return {static_cast<unsigned>(divisor)}; }
  constexpr int quotient(int n) const {
    return static_cast<int>(static_cast<unsigned>(n) / divisor);
  }
};

}  // namespace heddle
