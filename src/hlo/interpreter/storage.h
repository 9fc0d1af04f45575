// How the interpreter keeps floating values, and the values it works on.
#pragma once

#include <cstdint>
#include <vector>

#include "hlo/element_type.h"
#include "hlo/literal.h"

namespace heddle::hlo {

enum class FloatStorage : uint8_t {
  own,   // each value in its own type
  wide,  // types below f32 in f32: inside of reductions, which round once at their end
  f64,   // everything in f64
};

inline ElementType storage_type(ElementType type, FloatStorage storage) {
  if (!is_floating(type) || storage == FloatStorage::own) return type;
  if (storage == FloatStorage::f64) return ElementType::f64;
  return type == ElementType::f64 ? type : ElementType::f32;
}

/// Row-major strides in elements.
inline std::vector<int64_t> row_major_strides(const std::vector<int64_t>& dims) {
  std::vector<int64_t> strides(dims.size());
  int64_t stride = 1;
  for (size_t i = dims.size(); i-- > 0;) {
    strides[i] = stride;
    stride *= dims[i];
  }
  return strides;
}

}  // namespace heddle::hlo
