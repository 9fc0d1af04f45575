// Functions of score expressions that are no single instruction.
#pragma once

#include "../ptx/math.cuh"
#include "../streaming/sine_cosine.cuh"
#include "exponents.cuh"

namespace heddle::attention {

/// tanh as 1 - 2 / (e^2x + 1): two special-function instructions, an error of a few ulp of 1, and
/// the right limits at both ends.
HEDDLE_DEVICE float tanh(float x) {
  return 1.0f - 2.0f * ptx::reciprocal(1.0f + ptx::exp2(2.0f * kLog2E * x));
}

/// tanh to a few ulp of itself, as f32 scores need it: by an odd polynomial where the difference
/// above cancels. Operands of 16 bits would not see it.
HEDDLE_DEVICE float tanh_f32(float x) {
  const float square = x * x;
  float series = -5.70498872745e-3f;
  series = fmaf(series, square, 2.06390887954e-2f);
  series = fmaf(series, square, -5.37397155531e-2f);
  series = fmaf(series, square, 1.33314422036e-1f);
  series = fmaf(series, square, -3.33332819422e-1f);
  const float small = fmaf(x * square, series, x);
  return square < 0.390625f ? small : tanh(x);
}

/// e^x, ln(x) and 1 / (1 + e^-x) with errors of 2^-18, which operands of 16 bits do not see.
HEDDLE_DEVICE float exponential(float x) { return ptx::exp2(kLog2E * x); }
HEDDLE_DEVICE float logarithm(float x) { return kLn2 * ptx::log2(x); }
HEDDLE_DEVICE float sigmoid(float x) { return ptx::reciprocal(1.0f + exponential(-x)); }
HEDDLE_DEVICE float sigmoid_f32(float x) { return ptx::divide(1.0f, 1.0f + expf(-x)); }

/// erf to 1.5e-7 (Abramowitz and Stegun, Handbook of Mathematical Functions, 7.1.26).
HEDDLE_DEVICE float error_function(float x) {
  const float t = ptx::reciprocal(fmaf(0.3275911f, fabsf(x), 1.0f));
  float series = fmaf(1.061405429f, t, -1.453152027f);
  series = fmaf(series, t, 1.421413741f);
  series = fmaf(series, t, -0.284496736f);
  series = fmaf(series, t, 0.254829592f);
  return copysignf(fmaf(-series * t, exponential(-x * x), 1.0f), x);
}

/// base ^ exponent as powf defines it, infinities and signs too; an error of 2^-22 for each unit of
/// the result's exponent. A base of 2, as of ALiBi's slopes, is one special-function instruction.
HEDDLE_DEVICE float power(float base, float exponent) {
  if (base == 2.0f) return ptx::exp2(exponent);
  const float magnitude = ptx::exp2(exponent * ptx::log2(fabsf(base)));
  const bool whole = truncf(exponent) == exponent;  // of infinities too
  const bool odd = fabsf(fmaf(-2.0f, truncf(0.5f * exponent), exponent)) == 1.0f;
  const bool is_one = exponent == 0 || base == 1.0f || (base == -1.0f && isinf(exponent));
  const float undefined = __int_as_float(0x7fffffff);
  const float result = base < 0 && !whole && !isinf(base) ? undefined : magnitude;
  return is_one ? 1.0f : odd ? copysignf(result, base) : result;
}
HEDDLE_DEVICE float power_f32(float base, float exponent) {
  return base == 2.0f ? ptx::exp2(exponent) : powf(base, exponent);
}

/// x modulo y, exactly, for 0 <= x < 2^17 y. A quotient rounded up leaves a rest that is exact: of
/// one too small the rest could have a bit too many.
HEDDLE_DEVICE float modulo_near(float x, float y) {
  const float quotient = truncf(ptx::divide(x, y) * 1.0000005f);
  const float rest = fmaf(-quotient, y, x);
  return rest < 0 ? rest + y : rest;
}

/// fmod(x, y).
HEDDLE_DEVICE float modulo(float x, float y) {
  const float divisor = fabsf(y);
  float rest = fabsf(x);
  const bool defined = rest - rest == 0 && divisor > 0;  // false of NaN
  if (!defined) return __int_as_float(0x7fffffff);
  if (isinf(divisor)) return x;
  while (rest >= divisor * 65536.0f) {
    const int apart = ilogbf(rest) - ilogbf(divisor);
    rest = modulo_near(rest, scalbnf(divisor, apart - 16));
  }
  return copysignf(modulo_near(rest, divisor), x);
}

// libdevice's functions of angles reduce large ones in local memory.
HEDDLE_DEVICE float sine(float x) {
  float s, c;
  streaming::sine_cosine(x, s, c);
  return s;
}
HEDDLE_DEVICE float cosine(float x) {
  float s, c;
  streaming::sine_cosine(x, s, c);
  return c;
}
HEDDLE_DEVICE float tangent(float x) {
  float s, c;
  streaming::sine_cosine(x, s, c);
  return ptx::divide(s, c);
}

}  // namespace heddle::attention
