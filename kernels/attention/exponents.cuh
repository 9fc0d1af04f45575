// Exponentials and logarithms are taken to base 2, one instruction each: e^x = 2^(kLog2E x), and
// ln(x) = kLn2 log2(x).
#pragma once

namespace heddle::attention {

inline constexpr float kLog2E = 1.4426950408889634f;
inline constexpr float kLog2ERest = 1.92596303e-8f;  ///< what kLog2E is rounded by
inline constexpr float kLn2 = 0.6931471805599453f;

}  // namespace heddle::attention
