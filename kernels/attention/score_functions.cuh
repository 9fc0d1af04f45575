// Functions of score expressions that are no single instruction.
#pragma once

#include "../ptx/math.cuh"
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

/// base ^ exponent. A base of 2, as of ALiBi's slopes, is one special-function instruction; powf
/// has some hundred, with branches, in every cell.
HEDDLE_DEVICE float power(float base, float exponent) {
  return base == 2.0f ? ptx::exp2(exponent) : powf(base, exponent);
}

}  // namespace heddle::attention
