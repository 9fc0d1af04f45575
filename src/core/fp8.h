// Numbers of 8 bits: types that saturate where they are results.
#pragma once

#include <algorithm>
#include <cmath>

#include "core/dtype.h"

namespace heddle {

inline bool is_fp8(DataType type) { return type == DataType::f8e4m3 || type == DataType::f8e5m2; }

/// What an fp8 type is given for `value` where it saturates: the nearest that is no larger than its
/// largest number, of an infinity too; a NaN stays one. Of other types `value`.
inline double saturated(DataType type, double value) {
  if (!is_fp8(type) || std::isnan(value)) return value;
  const double largest = type == DataType::f8e4m3 ? 448 : 57344;
  return std::clamp(value, -largest, largest);
}

}  // namespace heddle
