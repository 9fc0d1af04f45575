// From operands to rows of numbers and back: addresses of rows behind strides, ragged offsets and
// page tables.
#pragma once

#if defined(HEDDLE_CPU_LEVEL_F64)
#include "engine/cpu/kernels/elements_f64.h"
#else
#include "engine/cpu/kernels/elements_f32.h"
#endif

namespace heddle::engine::cpu::HEDDLE_CPU_LEVEL {

constexpr int64_t round_up(int64_t n, int64_t unit) { return (n + unit - 1) / unit * unit; }
inline int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }
inline int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }

inline int64_t integer_at(const View& v, int64_t index) {
  const char* p = v.data + index * v.element_bytes;
  switch (v.element) {
    case Element::i64:
      return read_as<int64_t>(p);
    case Element::u64:
      return static_cast<int64_t>(read_as<uint64_t>(p));
    case Element::i32:
      return read_as<int32_t>(p);
    case Element::u32:
      return read_as<uint32_t>(p);
    case Element::i8:
      return read_as<int8_t>(p);
    default:
      return read_as<uint8_t>(p);
  }
}

/// Element of v where (b, h, 0, 0) lies.
inline int64_t origin(const View& v, int64_t b, int64_t h) {
  const int64_t batch = v.ragged
                            ? integer_at(*v.ragged, b * v.ragged->stride[0]) * v.ragged_multiplier
                            : b * v.stride[0];
  return batch + h * v.stride[1];
}
/// Null of a row on a page that does not exist.
inline char* row_address(const View& v, int64_t b, int64_t h, int64_t s) {
  int64_t element;
  if (v.pages) {
    if (s / v.dims[2] >= v.pages->dims[2]) return nullptr;
    const int64_t page =
        integer_at(*v.pages, origin(*v.pages, b, 0) + s / v.dims[2] * v.pages->stride[2]);
    if (page < 0 || page >= v.dims[0]) return nullptr;
    element = page * v.stride[0] + h * v.stride[1] + s % v.dims[2] * v.stride[2];
  } else {
    element = origin(v, b, h) + (v.ring ? s % v.dims[2] : s) * v.stride[2];
  }
  return v.data + element * v.element_bytes;
}

inline Real number_at(const View& v, int64_t index) {
  return number_at(v.element, v.data + index * v.element_bytes);
}

/// Scales of head h's codes, stride[3] of the scales apart.
inline const float* scales_of(const View& codes, int64_t h) {
  return reinterpret_cast<const float*>(codes.scale->data) + h * codes.scale->stride[1];
}

/// Row s of v; columns dims[3].
inline void read_row(const View& v, int64_t b, int64_t h, int64_t s, Real* out) {
  read_row(v.element, row_address(v, b, h, s), v.stride[3], v.element_bytes, v.dims[3], out);
}
inline void write_row(const View& v, int64_t b, int64_t h, int64_t s, const Real* in, Real factor) {
  write_row(v.element, row_address(v, b, h, s), v.stride[3], v.element_bytes, v.dims[3], in,
            factor);
}
inline void write_row_of(const View& v, int64_t b, int64_t h, int64_t s, Real value) {
  char* p = row_address(v, b, h, s);
  for (int64_t d = 0; d < v.dims[3]; ++d)
    write_number_at(v.element, p + d * v.stride[3] * v.element_bytes, value);
}
/// Whether its rows are numbers of the kernels already, side by side.
inline bool is_own_row(const View& v) {
  return v.element == kRealElement && (v.stride[3] == 1 || v.dims[3] == 1);
}

inline void fill(Real* p, int64_t n, Real value) {
  const Float x = all(value);
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) store(p + i, x);
  if (i < n) store_first(p + i, x, static_cast<int>(n - i));
}

}  // namespace heddle::engine::cpu::HEDDLE_CPU_LEVEL
