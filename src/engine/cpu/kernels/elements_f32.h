// Elements of every type as f32, and back.
#pragma once

#include "engine/cpu/arguments.h"
#include "engine/cpu/kernels/bytes.h"
#include "engine/cpu/kernels/vector.h"

namespace heddle::engine::cpu::HEDDLE_CPU_LEVEL {

inline constexpr Element kRealElement = Element::f32;

/// Any element as f32. The rare types go through here one at a time.
inline float number_at(Element element, const char* p) {
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

/// Rounded towards 0 and saturated; NaN is 0.
inline int32_t to_integer(float x) {
  if (x >= 2147483648.0f) return INT32_MAX;
  if (x < -2147483648.0f) return INT32_MIN;
  return x == x ? static_cast<int32_t>(x) : 0;
}

inline void write_number_at(Element element, char* p, float x) {
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
  for (; i < n; ++i) out[i] = number_at(element, p + i * stride * bytes);
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
  for (; i < n; ++i) write_number_at(element, p + i * stride * bytes, in[i] * factor);
}

}  // namespace heddle::engine::cpu::HEDDLE_CPU_LEVEL
