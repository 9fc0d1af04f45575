// Elementary functions of f32 vectors: range reduction and a polynomial. No call leaves the vector
// unit except where said. exp2 is within 1.5 ulp; the others within 3 of libm's on tests' ranges.
#pragma once

#include "engine/cpu/kernels/constants.h"

namespace heddle::engine::cpu::HEDDLE_CPU_LEVEL {

/// 2^f for |f| <= 1/2: minimax for relative error 1.9e-9 (Remez exchange).
inline Float exp2_fraction(Float f) {
  Float p = all(1.5345812003e-04f);
  p = multiply_add(p, f, all(1.3399931219e-03f));
  p = multiply_add(p, f, all(9.6184889571e-03f));
  p = multiply_add(p, f, all(5.5503287770e-02f));
  p = multiply_add(p, f, all(2.4022646891e-01f));
  p = multiply_add(p, f, all(6.9314720574e-01f));
  return multiply_add(p, f, all(1.0f));
}

/// 2^x; exactly 0 below 2^-150 and for -inf, inf above 2^128; NaN stays NaN.
inline Float exp2(Float x) {
  // Clamping with x as the second operand lets a NaN through.
  x = min(all(128), max(all(-200), x));
  const Float n = round_to_integer(x);
  return scale_by_power_of_two(exp2_fraction(subtract(x, n)), n);
}

/// A factor in two parts, so that products with it are as good as exact.
struct SplitFactor {
  Float high, low;
  Float least;  ///< -200 / factor
};
inline SplitFactor split(double factor) {
  const float high = static_cast<float>(factor);
  return {all(high), all(static_cast<float>(factor - high)), all(-200 / high)};
}

/// 2^(x * unit) for x <= 0 and unit > 0; exactly 1 at 0 and exactly 0 for -inf. Below 2^-125 it is
/// 0: products with numbers below the normal range are slow (a Sapphire Rapids core took five times
/// as long for keys in codes where a fifth of the probabilities were such), and they are nothing
/// beside a 1.
inline Float exp2_of_product(Float x, const SplitFactor& unit) {
  x = max(unit.least, x);
  const Float n = round_to_integer(multiply(x, unit.high));
  const Float f = multiply_add(x, unit.low, multiply_subtract(x, unit.high, n));
  const Float least = all(-125);
  // The clamp lets a NaN through, and so does the choice.
  const Float power = scale_by_power_of_two(exp2_fraction(f), max(least, n));
  return select(less(n, least), zero(), power);
}

/// What e^(x * unit) takes of its unit.
inline SplitFactor power_unit(double unit) { return split(unit * kLog2E); }
/// e^(x * unit) as exp2_of_product has it, of the unit's power_unit().
inline Float exp_of_product(Float x, const SplitFactor& unit) { return exp2_of_product(x, unit); }
/// The same of a number.
inline float exp_of_product(float x, double unit) {
  return __builtin_exp2f(static_cast<float>(x * (unit * kLog2E)));
}

/// x * factor of a finite x, rounded once where the machine has fused multiply-adds. An infinite
/// one's is NaN: its product with the low part may be one, or the other infinity.
inline Float finite_product(Float x, const SplitFactor& factor) {
  return multiply_add(x, factor.high, multiply(x, factor.low));
}

/// The same of any x: the low part takes an infinite one as the largest number.
inline Float product(Float x, const SplitFactor& factor) {
  const Float finite = min(all(__FLT_MAX__), max(all(-__FLT_MAX__), x));  // lets a NaN through
  return multiply_add(x, factor.high, multiply(finite, factor.low));
}

/// The same of a number, to the bit.
inline float product(float x, double factor) {
  float lanes[kLanes];
  store(lanes, product(all(x), split(factor)));
  return lanes[0];
}

/// e^(x * unit - shift): what a score weighs beside its row's shift. The product is rounded before
/// the shift is taken from it, as the shift was, so that the difference is exactly 0 for the score
/// that is the row's largest, however large. Where it is called no score is above a shift but by
/// its rounding, which of a huge one would be any weight. Exactly 0 for -inf, whose product may be
/// NaN here: the bound, below which f32 has nothing, takes the place of either.
inline Float exp_of_difference(Float x, const SplitFactor& unit, Float shift) {
  const SplitFactor log2_e = split(kLog2E);
  Float t = max(subtract(finite_product(x, unit), shift), all(-140));
  t = min(zero(), t);
  const Float n = round_to_integer(multiply(t, log2_e.high));
  const Float f = multiply_add(t, log2_e.low, multiply_subtract(t, log2_e.high, n));
  return scale_by_power_of_two(exp2_fraction(f), n);
}

/// Shifts below this have a number 140 lower.
inline constexpr float kNearShift = 0x1p20f;
/// The same beside a shift of a magnitude below kNearShift. What rounding takes of the difference
/// goes on to the exponent: of thousands of keys, whose shift is about 10, it is 8 roundings of a
/// weight.
inline Float exp_of_near_difference(Float x, const SplitFactor& unit, Float shift) {
  const SplitFactor log2_e = split(kLog2E);
  const Float score = max(finite_product(x, unit), subtract(shift, all(140)));
  const Float difference = subtract(score, shift), lost = subtract(score, add(difference, shift));
  const Float t = min(all(88), difference);
  const Float n = round_to_integer(multiply(t, log2_e.high));
  const Float f = multiply_add(t, log2_e.low, multiply_subtract(t, log2_e.high, n));
  return scale_by_power_of_two(exp2_fraction(multiply_add(lost, log2_e.high, f)), n);
}

/// a * b + c of numbers, rounded as multiply_add rounds each lane. Said, and not left to the
/// compiler as there: of a loop's sum GCC takes the products of four steps together, each rounded.
inline float multiply_add(float a, float b, float c) {
#if defined(__FMA__) || defined(__ARM_FEATURE_FMA)
  return __builtin_fmaf(a, b, c);
#else
  return a * b + c;
#endif
}

/// e^x. The product x * log2(e) is split so that its rounding error does not reach the exponent.
inline Float exp(Float x) {
  x = min(all(89), max(all(-104), x));
  const Float n = round_to_integer(multiply(x, all(static_cast<float>(kLog2E))));
  Float f = multiply_add(n, all(-0.693145751953125f), x);
  f = multiply_add(n, all(-1.42860682030941723e-6f), f);
  Float p = all(1.f / 5040);
  p = multiply_add(p, f, all(1.f / 720));
  p = multiply_add(p, f, all(1.f / 120));
  p = multiply_add(p, f, all(1.f / 24));
  p = multiply_add(p, f, all(1.f / 6));
  p = multiply_add(p, f, all(.5f));
  p = multiply_add(p, f, all(1));
  p = multiply_add(p, f, all(1));
  // 2^128 is no f32, but p 2^128 may be one: the last quarter below ln(2^128).
  const Float y = scale_by_power_of_two(p, min(all(127), n));
  return select(less(all(127), n), add(y, y), y);
}

inline Float copy_sign_of(Float x, Float magnitude) {
  return select(less(x, zero()), subtract(zero(), magnitude), magnitude);
}

/// tanh x: an odd polynomial near 0, where 1 - 2/(e^2x + 1) would cancel.
inline Float tanh(Float x) {
  const Float a = absolute(x);
  const Float far = subtract(all(1), divide(all(2), add(exp(add(a, a)), all(1))));
  const Float s = multiply(x, x);
  // Coefficients of Cephes' tanhf (S. Moshier), |x| < 0.625.
  Float p = all(-5.70498872745e-3f);
  p = multiply_add(p, s, all(2.06390887954e-2f));
  p = multiply_add(p, s, all(-5.37397155531e-2f));
  p = multiply_add(p, s, all(1.33314422036e-1f));
  p = multiply_add(p, s, all(-3.33332819422e-1f));
  const Float near = multiply_add(multiply(p, s), x, x);
  return select(less(a, all(0.625f)), near, copy_sign_of(x, far));
}

inline Float sigmoid(Float x) { return divide(all(1), add(all(1), exp(subtract(zero(), x)))); }

}  // namespace heddle::engine::cpu::HEDDLE_CPU_LEVEL
