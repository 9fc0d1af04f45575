// No instruction-set flags: GCC's vector extension at four lanes, which is SSE2 on x86-64 and
// whatever the machine has elsewhere.
#pragma once

#include <cstdint>

#include "engine/cpu/kernel_shape.h"

namespace heddle::engine::cpu::HEDDLE_CPU_LEVEL {

typedef float Float __attribute__((vector_size(16)));
typedef int32_t Mask __attribute__((vector_size(16)));
typedef uint32_t Bits __attribute__((vector_size(16)));
inline constexpr KernelShape kShape = kPortableShape;
inline constexpr int kLanes = kShape.lanes;

inline Float all(float x) { return Float{x, x, x, x}; }
inline Float zero() { return all(0); }
inline Float lane_numbers() { return Float{0, 1, 2, 3}; }
inline Float load(const float* p) {
  Float x;
  __builtin_memcpy(&x, p, sizeof x);
  return x;
}
inline void store(float* p, Float x) { __builtin_memcpy(p, &x, sizeof x); }
inline Float load_first(const float* p, int n) {
  Float x = zero();
  for (int i = 0; i < n; ++i) x[i] = p[i];
  return x;
}
inline void store_first(float* p, Float x, int n) {
  for (int i = 0; i < n; ++i) p[i] = x[i];
}

inline float float_of_bits(uint32_t bits) {
  float x;
  __builtin_memcpy(&x, &bits, sizeof x);
  return x;
}
inline uint32_t bits_of_float(float x) {
  uint32_t bits;
  __builtin_memcpy(&bits, &x, sizeof bits);
  return bits;
}
inline float f16_to_float(uint16_t half) {
  const uint32_t sign = static_cast<uint32_t>(half & 0x8000) << 16;
  const uint32_t exponent = (half >> 10) & 31, mantissa = half & 0x3ff;
  if (exponent == 31) return float_of_bits(sign | 0x7f800000 | (mantissa << 13));
  if (exponent != 0) return float_of_bits(sign | ((exponent + 112) << 23) | (mantissa << 13));
  const float subnormal = static_cast<float>(mantissa) * 0x1p-24f;
  return sign ? -subnormal : subnormal;
}
/// Rounds to nearest even; a NaN stays a NaN.
inline uint16_t float_to_f16(float x) {
  const uint32_t bits = bits_of_float(x);
  const uint32_t sign = (bits >> 16) & 0x8000, magnitude = bits & 0x7fffffff;
  if (magnitude > 0x7f800000) return static_cast<uint16_t>(sign | 0x7e00);
  if (magnitude >= 0x47800000) return static_cast<uint16_t>(sign | 0x7c00);
  if (magnitude < 0x38800000) {  // subnormal: let the adder round at 2^-24
    const float rounded = float_of_bits(magnitude) + 0.5f;
    return static_cast<uint16_t>(sign | (bits_of_float(rounded) - bits_of_float(0.5f)));
  }
  const uint32_t rounded = magnitude + 0xfff + ((magnitude >> 13) & 1);
  return static_cast<uint16_t>(sign | ((rounded - (112u << 23)) >> 13));
}
inline Mask is_nan(Float x) { return ((Bits)x & 0x7fffffff) > 0x7f800000; }
inline Float load_bf16(const uint16_t* p) {
  Bits bits{p[0], p[1], p[2], p[3]};
  return (Float)(bits << 16);
}
inline Float load_f16(const uint16_t* p) {
  return Float{f16_to_float(p[0]), f16_to_float(p[1]), f16_to_float(p[2]), f16_to_float(p[3])};
}
inline Float load_i8(const int8_t* p) {
  return Float{static_cast<float>(p[0]), static_cast<float>(p[1]), static_cast<float>(p[2]),
               static_cast<float>(p[3])};
}
/// Codes of 4 bits, the low one of a byte first, less 8.
inline Float load_i4(const uint8_t* p) {
  const Mask codes{p[0] & 15, p[0] >> 4, p[1] & 15, p[1] >> 4};
  return __builtin_convertvector(codes - 8, Float);
}
/// Exponent and mantissa move to those of an f32, whose exponents begin 120 lower.
inline Float load_f8e4m3(const uint8_t* p) {
  const Bits bits{p[0], p[1], p[2], p[3]};
  const Bits magnitude = bits & 127;
  const Bits value = (Bits)((Float)(magnitude << 20) * all(0x1p120f));
  const Bits nan = (Bits)(magnitude == 127);
  return (Float)(((bits & 128) << 24) | (value & ~nan) | (nan & 0x7fc00000));
}
inline void store_bf16(uint16_t* p, Float x) {
  const Bits bits = (Bits)x;
  const Bits rounded = bits + 0x7fff + ((bits >> 16) & 1);
  const Bits nan = (Bits)is_nan(x);
  const Bits result = ((rounded & ~nan) | ((bits | 0x400000) & nan)) >> 16;
  for (int i = 0; i < kLanes; ++i) p[i] = static_cast<uint16_t>(result[i]);
}
inline void store_f16(uint16_t* p, Float x) {
  for (int i = 0; i < kLanes; ++i) p[i] = float_to_f16(x[i]);
}

/// condition ? a : b.
inline Float select(Mask condition, Float a, Float b) {
  return (Float)(((Mask)a & condition) | ((Mask)b & ~condition));
}
inline Float add(Float a, Float b) { return a + b; }
inline Float subtract(Float a, Float b) { return a - b; }
inline Float multiply(Float a, Float b) { return a * b; }
inline Float divide(Float a, Float b) { return a / b; }
/// a * b + c, rounded once where the machine can.
inline Float multiply_add(Float a, Float b, Float c) { return a * b + c; }
inline Float multiply_subtract(Float a, Float b, Float c) { return a * b - c; }
/// The lesser or greater; b if either is NaN.
inline Float min(Float a, Float b) { return select(a < b, a, b); }
inline Float max(Float a, Float b) { return select(a > b, a, b); }
inline Float absolute(Float a) { return (Float)((Bits)a & 0x7fffffff); }
inline Float square_root(Float a) {
  for (int i = 0; i < kLanes; ++i) a[i] = __builtin_sqrtf(a[i]);
  return a;
}
/// Adding and taking away 2^23 with the number's own sign rounds it; larger ones are integers.
inline Float round_to_integer(Float a) {
  const Float magic = (Float)(((Bits)a & 0x80000000) | (Bits)all(0x1p23f));
  return select(absolute(a) < all(0x1p23f), (a + magic) - magic, a);
}
inline Float floor(Float a) {
  const Float rounded = round_to_integer(a);
  return rounded - select(rounded > a, all(1), zero());
}
inline Float ceil(Float a) {
  const Float rounded = round_to_integer(a);
  return rounded + select(rounded < a, all(1), zero());
}
/// a * 2^n for an integral n in [-200, 128]; 0 below the normal range.
inline Float scale_by_power_of_two(Float a, Float n) {
  const Mask integer = __builtin_convertvector(select(is_nan(n), zero(), n), Mask);
  const Float power = (Float)((integer + 127) << 23);
  return a * select(integer >= -126, power, zero());
}

inline Mask less(Float a, Float b) { return a < b; }
inline Mask less_equal(Float a, Float b) { return a <= b; }
inline Mask equal(Float a, Float b) { return a == b; }

inline float sum_of_lanes(Float a) { return (a[0] + a[2]) + (a[1] + a[3]); }
inline float max_of_lanes(Float a) {
  const float x = a[0] > a[1] ? a[0] : a[1], y = a[2] > a[3] ? a[2] : a[3];
  return x > y ? x : y;
}

/// Four rows of four lanes, transposed in place.
inline void transpose(Float (&r)[kLanes]) {
  const Float a = __builtin_shufflevector(r[0], r[1], 0, 4, 1, 5);
  const Float b = __builtin_shufflevector(r[0], r[1], 2, 6, 3, 7);
  const Float c = __builtin_shufflevector(r[2], r[3], 0, 4, 1, 5);
  const Float d = __builtin_shufflevector(r[2], r[3], 2, 6, 3, 7);
  r[0] = __builtin_shufflevector(a, c, 0, 1, 4, 5);
  r[1] = __builtin_shufflevector(a, c, 2, 3, 6, 7);
  r[2] = __builtin_shufflevector(b, d, 0, 1, 4, 5);
  r[3] = __builtin_shufflevector(b, d, 2, 3, 6, 7);
}

/// Lane c is the sum of r[c]'s lanes.
inline Float sums_of_lanes(Float (&r)[kLanes]) {
  transpose(r);
  return (r[0] + r[1]) + (r[2] + r[3]);
}

}  // namespace heddle::engine::cpu::HEDDLE_CPU_LEVEL
