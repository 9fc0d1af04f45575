// No instruction-set flags: GCC's vector extension at four lanes, which is SSE2 on x86-64 and
// whatever the machine has elsewhere. At sixteen lanes, and with pairs of bf16, it has what
// vector_avx512.h has: so the kernels that multiply tiles are tested on machines without either.
#pragma once

#include <cstdint>

#include "engine/cpu/kernel_shape.h"

namespace heddle::engine::cpu::HEDDLE_CPU_LEVEL {

#if defined(HEDDLE_CPU_LEVEL_STAND_IN)
inline constexpr KernelShape kShape = kAmxShape;
#else
inline constexpr KernelShape kShape = kPortableShape;
#endif
inline constexpr int kLanes = kShape.lanes;
typedef float Float __attribute__((vector_size(4 * kLanes)));
typedef int32_t Mask __attribute__((vector_size(4 * kLanes)));
typedef uint32_t Bits __attribute__((vector_size(4 * kLanes)));
typedef uint16_t Halves __attribute__((vector_size(2 * kLanes)));

inline Float zero() { return Float{}; }
inline Float all(float x) { return x - zero(); }
inline Float lane_numbers() {
  Float x;
  for (int i = 0; i < kLanes; ++i) x[i] = static_cast<float>(i);
  return x;
}
inline Float load(const float* p) {
  Float x;
  __builtin_memcpy(&x, p, sizeof x);
  return x;
}
inline void store(float* p, Float x) { __builtin_memcpy(p, &x, sizeof x); }
/// Words may be pairs of bf16 where they lie, which need not be aligned as floats are.
inline Float load_first(const float* p, int n) {
  Float x = zero();
  __builtin_memcpy(&x, p, 4 * static_cast<unsigned>(n));
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
inline Halves load_halves(const uint16_t* p) {
  Halves x;
  __builtin_memcpy(&x, p, sizeof x);
  return x;
}
inline void store_halves(uint16_t* p, Halves x) { __builtin_memcpy(p, &x, sizeof x); }
inline Float bf16_bits_to_float(Halves x) {
  return (Float)(__builtin_convertvector(x, Bits) << 16);
}
inline Float load_bf16(const uint16_t* p) { return bf16_bits_to_float(load_halves(p)); }
inline Float load_f16(const uint16_t* p) {
  Float x;
  for (int i = 0; i < kLanes; ++i) x[i] = f16_to_float(p[i]);
  return x;
}
inline Float load_i8(const int8_t* p) {
  Float x;
  for (int i = 0; i < kLanes; ++i) x[i] = static_cast<float>(p[i]);
  return x;
}
/// Codes of 4 bits, the low one of a byte first, less 8.
inline Float load_i4(const uint8_t* p) {
  Mask codes;
  for (int i = 0; i < kLanes; ++i) codes[i] = i % 2 == 0 ? p[i / 2] & 15 : p[i / 2] >> 4;
  return __builtin_convertvector(codes - 8, Float);
}
/// Exponent and mantissa move to those of an f32, whose exponents begin 120 lower. Subnormal codes
/// are multiples of 2^-9: moved, they would be subnormal, which some threads, XLA's, take for 0.
inline Float load_f8e4m3(const uint8_t* p) {
  Bits bits;
  for (int i = 0; i < kLanes; ++i) bits[i] = p[i];
  const Bits magnitude = bits & 127;
  const Bits units = (Bits)(__builtin_convertvector((Mask)magnitude, Float) * all(0x1p-9f));
  const Bits is_subnormal = (Bits)(magnitude < 8);
  const Bits moved = (magnitude << 20) + (120u << 23);
  const Bits value = (units & is_subnormal) | (moved & ~is_subnormal);
  const Bits nan = (Bits)(magnitude == 127);
  return (Float)(((bits & 128) << 24) | (value & ~nan) | (nan & 0x7fc00000));
}
inline Halves to_bf16_bits(Float x) {
  const Bits bits = (Bits)x;
  const Bits rounded = bits + 0x7fff + ((bits >> 16) & 1);
  const Bits nan = (Bits)is_nan(x);
  return __builtin_convertvector(((rounded & ~nan) | ((bits | 0x400000) & nan)) >> 16, Halves);
}
inline void store_bf16(uint16_t* p, Float x) { store_halves(p, to_bf16_bits(x)); }
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

#if defined(HEDDLE_CPU_LEVEL_STAND_IN)
inline float sum_of_lanes(Float a) {
  for (int half = kLanes / 2; half > 0; half /= 2)
    for (int i = 0; i < half; ++i) a[i] += a[i + half];
  return a[0];
}
inline float max_of_lanes(Float a) {
  for (int i = 1; i < kLanes; ++i) a[0] = a[0] > a[i] ? a[0] : a[i];
  return a[0];
}

/// As many rows as lanes, transposed in place.
inline void transpose(Float (&r)[kLanes]) {
  Float columns[kLanes];
  for (int i = 0; i < kLanes; ++i)
    for (int j = 0; j < kLanes; ++j) columns[i][j] = r[j][i];
  __builtin_memcpy(r, columns, sizeof columns);
}

/// Lane c is the sum of r[c]'s lanes.
inline Float sums_of_lanes(const Float (&r)[kLanes]) {
  Float sums;
  for (int i = 0; i < kLanes; ++i) sums[i] = sum_of_lanes(r[i]);
  return sums;
}
#else
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
#endif

#if defined(HEDDLE_CPU_LEVEL_BF16)
/// The first and the second number of each pair.
inline Float low_of_pairs(Float pairs) { return (Float)((Bits)pairs << 16); }
inline Float high_of_pairs(Float pairs) { return (Float)((Bits)pairs & 0xffff0000); }
/// sum + a.low * b.low + a.high * b.high of the bf16 pairs in each lane.
inline Float add_dot_of_pairs(Float a, Float b, Float sum) {
  return high_of_pairs(a) * high_of_pairs(b) + (low_of_pairs(a) * low_of_pairs(b) + sum);
}
/// bf16 to nearest even, numbers below the normal range to 0.
inline Halves to_bf16_fast(Float x) {
  return to_bf16_bits(select(absolute(x) < all(0x1p-126f), zero(), x));
}
inline void store_bf16_bits(uint16_t* p, Halves bits) { store_halves(p, bits); }
inline void store_bf16_fast(uint16_t* p, Float x) { store_halves(p, to_bf16_fast(x)); }
/// Two vectors of them, side by side.
inline void store_bf16_fast(uint16_t* p, Float first, Float second) {
  store_bf16_fast(p, first);
  store_bf16_fast(p + kLanes, second);
}
/// The bf16 that a number begins with.
inline Float cut_to_bf16(Float x) { return high_of_pairs(x); }
/// Lane by lane the pair of those that two numbers begin with.
inline Float pair_up_cut(Float low, Float high) {
  return (Float)(((Bits)low >> 16) | (Bits)cut_to_bf16(high));
}
/// Lane by lane the pair (low, high).
inline Float pair_up(Halves low, Halves high) {
  return (Float)(__builtin_convertvector(low, Bits) | (__builtin_convertvector(high, Bits) << 16));
}
inline Float pair_up(const uint16_t* low, const uint16_t* high) {
  return pair_up(load_halves(low), load_halves(high));
}
/// Whole numbers that lie as words.
inline Float load_integers(const float* p) { return __builtin_convertvector((Mask)load(p), Float); }
/// Rounded to whole numbers of 31 bits, whose four digits, each with a sign, go to places `pitch`
/// apart: x = sum of 256^n digit_n. A NaN is any number.
inline void store_digits(int8_t* p, int64_t pitch, Float x) {
  const Float rounded = round_to_integer(select(is_nan(x), zero(), x));
  const Bits digits = ((Bits) __builtin_convertvector(rounded, Mask) + 0x808080) ^ 0x808080;
  for (int n = 0; n < 4; ++n)
    for (int i = 0; i < kLanes; ++i) p[n * pitch + i] = static_cast<int8_t>(digits[i] >> (8 * n));
}
/// 64 codes of 4 bits, less 8.
inline void widen_i4(const uint8_t* p, int8_t* out) {
  for (int i = 0; i < 64; ++i)
    out[i] = static_cast<int8_t>((i % 2 == 0 ? p[i / 2] & 15 : p[i / 2] >> 4) - 8);
}
/// 64 codes as bf16, which has all their numbers.
inline void widen_f8e4m3(const uint8_t* p, uint16_t* out) {
  for (int i = 0; i < 64; i += kLanes) store_bf16_fast(out + i, load_f8e4m3(p + i));
}
/// 64 bytes of each of four rows as words of four, one of each row; 16 words to places `pitch`
/// words apart.
inline void interleave_four(const int8_t* const (&row)[4], float* out, int64_t pitch) {
  for (int d = 0; d < 64; ++d) {
    const int8_t word[4] = {row[0][d], row[1][d], row[2][d], row[3][d]};
    __builtin_memcpy(out + d / 16 * pitch + d % 16, word, sizeof word);
  }
}
#endif

}  // namespace heddle::engine::cpu::HEDDLE_CPU_LEVEL
