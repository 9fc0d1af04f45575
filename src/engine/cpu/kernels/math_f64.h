// Elementary functions of f64 vectors. exp is within 1 ulp; tanh is the C library's.
#pragma once

#include "engine/cpu/kernels/constants.h"
#include "engine/cpu/kernels/libm.h"

namespace heddle::engine::cpu::HEDDLE_CPU_LEVEL {

/// e^x; exactly 1 at 0, 0 for -inf, NaN stays NaN. x = n ln 2 + r with |r| <= ln(2)/2, where the
/// Taylor polynomial of degree 13 is off by 4e-18; ln 2 in two parts, of which the products of the
/// first are exact.
inline Float exp(Float x) {
  // Clamping with x as the second operand lets a NaN through.
  x = min(all(710), max(all(-746), x));
  const Float n = round_to_integer(multiply(x, all(kLog2E)));
  Float r = multiply_add(n, all(-0x1.62e42feep-1), x);
  r = multiply_add(n, all(-0x1.a39ef35793c76p-33), r);
  const Float z = multiply(r, r);
  // Of (e^r - 1 - r) / r^2, the terms of even and of odd degree.
  Float even = all(1. / 479001600), odd = all(1. / 6227020800);
  even = multiply_add(even, z, all(1. / 3628800)), odd = multiply_add(odd, z, all(1. / 39916800));
  even = multiply_add(even, z, all(1. / 40320)), odd = multiply_add(odd, z, all(1. / 362880));
  even = multiply_add(even, z, all(1. / 720)), odd = multiply_add(odd, z, all(1. / 5040));
  even = multiply_add(even, z, all(1. / 24)), odd = multiply_add(odd, z, all(1. / 120));
  even = multiply_add(even, z, all(1. / 2)), odd = multiply_add(odd, z, all(1. / 6));
  const Float tail = multiply_add(z, multiply_add(odd, r, even), r);
  return scale_by_power_of_two(add(all(1), tail), n);
}

/// A factor; f64 has no parts of it that would be worth their products.
struct SplitFactor {
  Float whole;
};
inline SplitFactor split(double factor) { return {all(factor)}; }

inline Float product(Float x, const SplitFactor& factor) { return multiply(x, factor.whole); }
/// The same of a number, to the bit.
inline double product(double x, double factor) { return x * factor; }

/// What e^(x * unit) takes of its unit.
inline SplitFactor power_unit(double unit) { return split(unit); }
/// e^(x * unit) for x <= 0 and unit > 0; exactly 1 at 0 and exactly 0 for -inf.
inline Float exp_of_product(Float x, const SplitFactor& unit) { return exp(product(x, unit)); }
/// The same of a number.
inline double exp_of_product(double x, double unit) { return libm::exp(x * unit); }

/// e^(x * unit - shift): what a score weighs beside its row's shift. The product is rounded before
/// the shift is taken from it, as the shift was, so that the difference is exactly 0 for the score
/// that is the row's largest, however large. Where it is called no score is above a shift but by
/// its rounding, which of a huge one would be any weight. Exactly 0 for -inf.
inline Float exp_of_difference(Float x, const SplitFactor& unit, Float shift) {
  return exp(min(zero(), subtract(product(x, unit), shift)));
}

/// Shifts below this have a number 750 lower.
inline constexpr double kNearShift = 0x1p40;
/// The same beside a shift of a magnitude below kNearShift. What rounding takes of the difference
/// is a part of the weight.
inline Float exp_of_near_difference(Float x, const SplitFactor& unit, Float shift) {
  const Float score = max(product(x, unit), subtract(shift, all(750)));
  const Float difference = subtract(score, shift), lost = subtract(score, add(difference, shift));
  const Float weight = exp(min(all(709), difference));
  return multiply_add(weight, lost, weight);
}

/// a * b + c of numbers, rounded as multiply_add rounds each lane.
inline double multiply_add(double a, double b, double c) {
#if defined(__FMA__)
  return __builtin_fma(a, b, c);
#else
  return a * b + c;
#endif
}

inline Float tanh(Float x) {
  return each_lane(x, [](double lane) { return libm::tanh(lane); });
}

inline Float sigmoid(Float x) { return divide(all(1), add(all(1), exp(subtract(zero(), x)))); }

}  // namespace heddle::engine::cpu::HEDDLE_CPU_LEVEL
