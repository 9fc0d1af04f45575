// Sine and cosine together, for angles as large as long sequences make them.
#pragma once

#include "engine/cpu/kernels/libm.h"

namespace heddle::engine::cpu::HEDDLE_CPU_LEVEL {

/// Both within 2 ulp of 1. The angle is taken to [-pi/4, pi/4] by a pi/2 in three parts: as long as
/// the quotient has 16 bits each step is exact in a fused multiply-add. Without one, and for larger
/// angles and in f64, the C library does the work.
inline void sine_cosine(Float x, Float& sine, Float& cosine) {
#if defined(__FMA__) && !defined(HEDDLE_CPU_LEVEL_F64)
  if (max_of_lanes(absolute(x)) < 65536.0f) {
    constexpr float kHalfPi[3] = {0x1.921fb6p+0f, -0x1.777a5cp-25f, -0x1.ee59dap-50f};
    // Least-maximum fits on [0, pi/4], errors 4e-9 (relative) and 1e-10.
    constexpr float kSine[3] = {-0.16666654802820f, 0.0083321689209522f, -0.00019516011229902f};
    constexpr float kCosine[3] = {0.041666646628359f, -0.0013887355358498f, 2.4437006942734e-05f};
    const Float k = round_to_integer(multiply(x, all(0.63661977236758f)));  // 2/pi
    Float r = x;
    for (float part : kHalfPi) r = multiply_add(k, all(-part), r);
    const Float z = multiply(r, r);
    Float s = multiply_add(all(kSine[2]), z, all(kSine[1]));
    s = multiply_add(multiply_add(s, z, all(kSine[0])), multiply(z, r), r);
    Float c = multiply_add(all(kCosine[2]), z, all(kCosine[1]));
    c = multiply_add(c, z, all(kCosine[0]));
    c = multiply_add(multiply_add(c, z, all(-0.5f)), z, all(1));
    // Quadrants 1 and 3 exchange the two; sine is negative in 2 and 3, cosine in 1 and 2.
    const Float quadrant = subtract(k, multiply(all(4), floor(multiply(k, all(0.25f)))));
    const Mask is_first = equal(quadrant, all(1)), is_third = equal(quadrant, all(3));
    const Float even_s = select(is_first, c, select(is_third, c, s));
    const Float even_c = select(is_first, s, select(is_third, s, c));
    sine = select(less(all(1), quadrant), subtract(zero(), even_s), even_s);
    const Mask is_second = equal(quadrant, all(2));
    const Float minus_c = subtract(zero(), even_c);
    cosine = select(is_first, minus_c, select(is_second, minus_c, even_c));
    return;
  }
#endif
  Real angle[kLanes], s[kLanes], c[kLanes];
  store(angle, x);
  for (int i = 0; i < kLanes; ++i) {
    s[i] = libm::sin(angle[i]);
    c[i] = libm::cos(angle[i]);
  }
  sine = load(s), cosine = load(c);
}

}  // namespace heddle::engine::cpu::HEDDLE_CPU_LEVEL
