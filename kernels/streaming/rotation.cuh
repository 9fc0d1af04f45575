// One rotation: how a pair of columns is turned, and how cosines and sines are rounded where a
// kernel of attention turns queries itself. Who rotates them for another, a backward for instance,
// must come to the same numbers: of a score of a hundred what one bit of a query changes is a
// factor of its weight.
#pragma once

#include "../ptx/math.cuh"

namespace heddle::streaming {

/// (x, y) turned: (x c - y s, y c + x s), the second product of each rounded.
HEDDLE_DEVICE void turn_pair(float& x, float& y, float c, float s) {
  const float a = ptx::fma(x, c, -__fmul_rn(y, s)), b = ptx::fma(y, c, __fmul_rn(x, s));
  x = a, y = b;
}
HEDDLE_DEVICE void turn_pair(double& x, double& y, double c, double s) {
  const double a = x * c - y * s, b = y * c + x * s;
  x = a, y = b;
}

/// The row of a table for `position` and `added` rows behind it, the nearest of those there are.
/// The rows are added last: to a position of 64 bits they may be too many.
HEDDLE_DEVICE i64 nearest_row(i64 position, i64 added, i64 table_rows) {
  const i64 last = table_rows - 1 - added;
  const i64 at = (position < last ? position : last) + added;
  return at > 0 ? at : 0;
}

/// What cosines and sines of a row are divided by before they are f16, and its reciprocal.
struct RotationUnit {
  float unit, per_unit;
};

/// Of a row whose largest magnitude is `largest`: 1, unless f16 would fall short of 2^-12 of it, or
/// not reach it; then a power of two whose reciprocal is one too.
HEDDLE_DEVICE RotationUnit rotation_unit(float largest) {
  int exponent = min_of(max_of(__float_as_int(largest) >> 23, 1), 253);
  if (exponent >= 127 - 12 && exponent <= 127 + 14) exponent = 127;
  return {__int_as_float(exponent << 23), __int_as_float((254 - exponent) << 23)};
}

HEDDLE_DEVICE u32 packed_rotation(float c, float s, const RotationUnit& unit) {
  return ptx::pack<f16>(c * unit.per_unit, s * unit.per_unit);
}

}  // namespace heddle::streaming
