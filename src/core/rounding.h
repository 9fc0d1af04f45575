// Whole numbers rounded up: how many blocks cover a length, and how far they reach.
#pragma once

#include <cstdint>

namespace heddle {

/// The least n with n * unit >= value; both positive, `value` perhaps 0.
constexpr int64_t divide_up(int64_t value, int64_t unit) { return (value + unit - 1) / unit; }

/// The least multiple of `unit` that is no less than `value`.
constexpr int64_t round_up(int64_t value, int64_t unit) { return divide_up(value, unit) * unit; }

}  // namespace heddle
