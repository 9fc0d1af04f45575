// From operands to rows of f32 and back: addresses of rows behind strides, ragged offsets and page
// tables, and conversion of element types.
#pragma once

#include "engine/cpu/arguments.h"
#include "engine/cpu/kernels/vector.h"

namespace heddle::engine::cpu::HEDDLE_CPU_LEVEL {

constexpr int64_t round_up(int64_t n, int64_t unit) { return (n + unit - 1) / unit * unit; }
inline int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }
inline int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }

template <class T>
inline T read_as(const char* p) {
  T x;
  __builtin_memcpy(&x, p, sizeof x);
  return x;
}

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

/// Any element as f32. The rare types go through here one at a time.
inline float float_at(Element element, const char* p) {
  switch (element) {
    case Element::f64:
      return static_cast<float>(read_as<double>(p));
    case Element::f32:
      return read_as<float>(p);
    case Element::bf16:
    case Element::f16: {
      const uint16_t half[kLanes] = {read_as<uint16_t>(p)};
      float x[kLanes];
      store(x, element == Element::bf16 ? load_bf16(half) : load_f16(half));
      return x[0];
    }
    case Element::i64:
      return static_cast<float>(read_as<int64_t>(p));
    case Element::u64:
      return static_cast<float>(read_as<uint64_t>(p));
    case Element::i32:
      return static_cast<float>(read_as<int32_t>(p));
    case Element::u32:
      return static_cast<float>(read_as<uint32_t>(p));
    case Element::i8:
      return read_as<int8_t>(p);
    case Element::boolean:
      return read_as<uint8_t>(p) != 0;
    case Element::f8e4m3: {
      uint8_t codes[kLanes] = {read_as<uint8_t>(p)};
      float x[kLanes];
      store(x, load_f8e4m3(codes));
      return x[0];
    }
    default:
      return read_as<uint8_t>(p);
  }
}
inline float float_at(const View& v, int64_t index) {
  return float_at(v.element, v.data + index * v.element_bytes);
}

/// Rounded towards 0 and saturated; NaN is 0.
inline int32_t to_integer(float x) {
  if (x >= 2147483648.0f) return INT32_MAX;
  if (x < -2147483648.0f) return INT32_MIN;
  return x == x ? static_cast<int32_t>(x) : 0;
}

inline void write_float_at(Element element, char* p, float x) {
  if (element == Element::f32) {
    __builtin_memcpy(p, &x, sizeof x);
  } else if (element == Element::i32) {
    const int32_t whole = to_integer(x);
    __builtin_memcpy(p, &whole, sizeof whole);
  } else if (element == Element::boolean) {
    *p = x != 0;
  } else if (element == Element::f64) {
    const double wide = x;
    __builtin_memcpy(p, &wide, sizeof wide);
  } else {
    uint16_t half[kLanes];
    if (element == Element::bf16) {
      store_bf16(half, all(x));
    } else {
      store_f16(half, all(x));
    }
    __builtin_memcpy(p, half, sizeof half[0]);
  }
}

/// out[0 .. n) = the n codes of 4 bits from p, less the 8 that all of them have more.
inline void read_four_bit_row(const uint8_t* in, int64_t n, float* out) {
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) store(out + i, load_i4(in + i / 2));
  for (; i < n; ++i)
    out[i] = static_cast<float>((i % 2 == 0 ? in[i / 2] & 15 : in[i / 2] >> 4) - 8);
}

/// out[0 .. n) = the n elements from p, `stride` elements apart.
inline void read_row(Element element, const char* p, int64_t stride, int64_t bytes, int64_t n,
                     float* out) {
  int64_t i = 0;
  if (stride == 1 && element == Element::f32) {
    const float* in = reinterpret_cast<const float*>(p);
    for (; i + kLanes <= n; i += kLanes) store(out + i, load(in + i));
  } else if (stride == 1 && element == Element::bf16) {
    const uint16_t* in = reinterpret_cast<const uint16_t*>(p);
    for (; i + kLanes <= n; i += kLanes) store(out + i, load_bf16(in + i));
  } else if (stride == 1 && element == Element::f16) {
    const uint16_t* in = reinterpret_cast<const uint16_t*>(p);
    for (; i + kLanes <= n; i += kLanes) store(out + i, load_f16(in + i));
  } else if (stride == 1 && element == Element::i8) {
    const int8_t* in = reinterpret_cast<const int8_t*>(p);
    for (; i + kLanes <= n; i += kLanes) store(out + i, load_i8(in + i));
  } else if (stride == 1 && element == Element::f8e4m3) {
    const uint8_t* in = reinterpret_cast<const uint8_t*>(p);
    for (; i + kLanes <= n; i += kLanes) store(out + i, load_f8e4m3(in + i));
  } else if (element == Element::i4) {
    return read_four_bit_row(reinterpret_cast<const uint8_t*>(p), n, out);
  }
  for (; i < n; ++i) out[i] = float_at(element, p + i * stride * bytes);
}

/// The n elements from p, `stride` elements apart, = in[0 .. n) * factor, rounded once.
inline void write_row(Element element, char* p, int64_t stride, int64_t bytes, int64_t n,
                      const float* in, float factor) {
  const Float f = all(factor);
  int64_t i = 0;
  if (stride == 1 && element == Element::f32) {
    float* out = reinterpret_cast<float*>(p);
    for (; i + kLanes <= n; i += kLanes) store(out + i, multiply(load(in + i), f));
  } else if (stride == 1 && element == Element::bf16) {
    uint16_t* out = reinterpret_cast<uint16_t*>(p);
    for (; i + kLanes <= n; i += kLanes) store_bf16(out + i, multiply(load(in + i), f));
  } else if (stride == 1 && element == Element::f16) {
    uint16_t* out = reinterpret_cast<uint16_t*>(p);
    for (; i + kLanes <= n; i += kLanes) store_f16(out + i, multiply(load(in + i), f));
  }
  for (; i < n; ++i) write_float_at(element, p + i * stride * bytes, in[i] * factor);
}

/// Scales of head h's codes, stride[3] of the scales apart.
inline const float* scales_of(const View& codes, int64_t h) {
  return reinterpret_cast<const float*>(codes.scale->data) + h * codes.scale->stride[1];
}

/// Row s of v as f32; columns dims[3].
inline void read_row(const View& v, int64_t b, int64_t h, int64_t s, float* out) {
  read_row(v.element, row_address(v, b, h, s), v.stride[3], v.element_bytes, v.dims[3], out);
}
inline void write_row(const View& v, int64_t b, int64_t h, int64_t s, const float* in,
                      float factor) {
  write_row(v.element, row_address(v, b, h, s), v.stride[3], v.element_bytes, v.dims[3], in,
            factor);
}
inline void write_row_of(const View& v, int64_t b, int64_t h, int64_t s, float value) {
  char* p = row_address(v, b, h, s);
  for (int64_t d = 0; d < v.dims[3]; ++d)
    write_float_at(v.element, p + d * v.stride[3] * v.element_bytes, value);
}
inline bool is_f32_row(const View& v) {
  return v.element == Element::f32 && (v.stride[3] == 1 || v.dims[3] == 1);
}

inline void fill(float* p, int64_t n, float value) {
  const Float x = all(value);
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) store(p + i, x);
  if (i < n) store_first(p + i, x, static_cast<int>(n - i));
}

}  // namespace heddle::engine::cpu::HEDDLE_CPU_LEVEL
