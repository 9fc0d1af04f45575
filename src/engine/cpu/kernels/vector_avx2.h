// AVX2 with FMA and F16C: eight lanes, sixteen registers.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "engine/cpu/kernel_shape.h"

namespace heddle::engine::cpu::HEDDLE_CPU_LEVEL {

using Float = __m256;
using Mask = __m256;
inline constexpr KernelShape kShape = kAvx2Shape;
inline constexpr int kLanes = kShape.lanes;

/// All bits set in the first n lanes.
inline __m256i first_lanes(int n) {
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}

inline Float zero() { return _mm256_setzero_ps(); }
inline Float all(float x) { return _mm256_set1_ps(x); }
inline Float lane_numbers() { return _mm256_setr_ps(0, 1, 2, 3, 4, 5, 6, 7); }
inline Float load(const float* p) { return _mm256_loadu_ps(p); }
inline void store(float* p, Float x) { _mm256_storeu_ps(p, x); }
inline Float load_first(const float* p, int n) { return _mm256_maskload_ps(p, first_lanes(n)); }
inline void store_first(float* p, Float x, int n) { _mm256_maskstore_ps(p, first_lanes(n), x); }

inline Float load_bf16(const uint16_t* p) {
  const __m128i bits = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
}
inline Float load_f16(const uint16_t* p) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
inline Float load_i8(const int8_t* p) {
  return _mm256_cvtepi32_ps(
      _mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))));
}
/// Codes of 4 bits, the low one of a byte first, less 8.
inline Float load_i4(const uint8_t* p) {
  int32_t four_bytes;
  __builtin_memcpy(&four_bytes, p, sizeof four_bytes);
  const __m128i both = _mm_cvtsi32_si128(four_bytes), four = _mm_set1_epi8(15);
  const __m128i codes =
      _mm_unpacklo_epi8(_mm_and_si128(both, four), _mm_and_si128(_mm_srli_epi16(both, 4), four));
  return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_sub_epi8(codes, _mm_set1_epi8(8))));
}
/// As f16, whose exponents begin 8 lower. Their conversion takes subnormal numbers as they are even
/// in a thread that takes those of f32 for 0, as XLA's do.
inline Float load_f8e4m3(const uint8_t* p) {
  const __m128i bits = _mm_cvtepu8_epi16(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
  const __m128i magnitude = _mm_and_si128(bits, _mm_set1_epi16(127));
  const __m128i sign = _mm_slli_epi16(_mm_and_si128(bits, _mm_set1_epi16(128)), 8);
  const __m128i is_nan = _mm_cmpeq_epi16(magnitude, _mm_set1_epi16(127));
  const __m128i nan = _mm_and_si128(is_nan, _mm_set1_epi16(0x7e00));
  const __m128i half = _mm_or_si128(_mm_or_si128(sign, nan), _mm_slli_epi16(magnitude, 7));
  return _mm256_mul_ps(_mm256_cvtph_ps(half), _mm256_set1_ps(256));
}
/// Rounds to nearest even; a NaN stays a NaN.
inline void store_bf16(uint16_t* p, Float x) {
  const __m256i bits = _mm256_castps_si256(x);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  const __m256i rounded = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
  const __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
  const __m256i is_nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
  const __m256i high = _mm256_srli_epi32(_mm256_blendv_epi8(rounded, quiet, is_nan), 16);
  _mm_storeu_si128(
      reinterpret_cast<__m128i*>(p),
      _mm_packus_epi32(_mm256_castsi256_si128(high), _mm256_extracti128_si256(high, 1)));
}
inline void store_f16(uint16_t* p, Float x) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p),
                   _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}

inline Float add(Float a, Float b) { return _mm256_add_ps(a, b); }
inline Float subtract(Float a, Float b) { return _mm256_sub_ps(a, b); }
inline Float multiply(Float a, Float b) { return _mm256_mul_ps(a, b); }
inline Float divide(Float a, Float b) { return _mm256_div_ps(a, b); }
/// a * b + c, rounded once where the machine can.
inline Float multiply_add(Float a, Float b, Float c) { return _mm256_fmadd_ps(a, b, c); }
inline Float multiply_subtract(Float a, Float b, Float c) { return _mm256_fmsub_ps(a, b, c); }
/// The lesser or greater; b if either is NaN.
inline Float min(Float a, Float b) { return _mm256_min_ps(a, b); }
inline Float max(Float a, Float b) { return _mm256_max_ps(a, b); }
inline Float absolute(Float a) { return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), a); }
inline Float square_root(Float a) { return _mm256_sqrt_ps(a); }
inline Float round_to_integer(Float a) {
  return _mm256_round_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
inline Float floor(Float a) { return _mm256_floor_ps(a); }
inline Float ceil(Float a) { return _mm256_ceil_ps(a); }
/// a * 2^n for an integral n in [-200, 128]; 0 below the normal range.
inline Float scale_by_power_of_two(Float a, Float n) {
  const __m256i exponent =
      _mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127)), 23);
  const Float normal = _mm256_cmp_ps(n, _mm256_set1_ps(-126), _CMP_NLT_UQ);
  return _mm256_mul_ps(a, _mm256_and_ps(_mm256_castsi256_ps(exponent), normal));
}

inline Mask less(Float a, Float b) { return _mm256_cmp_ps(a, b, _CMP_LT_OQ); }
inline Mask less_equal(Float a, Float b) { return _mm256_cmp_ps(a, b, _CMP_LE_OQ); }
inline Mask equal(Float a, Float b) { return _mm256_cmp_ps(a, b, _CMP_EQ_OQ); }
/// condition ? a : b.
inline Float select(Mask condition, Float a, Float b) { return _mm256_blendv_ps(b, a, condition); }

inline float sum_of_lanes(Float a) {
  __m128 x = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
  x = _mm_add_ps(x, _mm_movehl_ps(x, x));
  return _mm_cvtss_f32(_mm_add_ss(x, _mm_movehdup_ps(x)));
}
inline float max_of_lanes(Float a) {
  __m128 x = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
  x = _mm_max_ps(x, _mm_movehl_ps(x, x));
  return _mm_cvtss_f32(_mm_max_ss(x, _mm_movehdup_ps(x)));
}

/// Eight rows of eight lanes, transposed in place.
inline void transpose(Float (&r)[kLanes]) {
  Float t[8];
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    t[2 * i] = _mm256_unpacklo_ps(r[2 * i], r[2 * i + 1]);
    t[2 * i + 1] = _mm256_unpackhi_ps(r[2 * i], r[2 * i + 1]);
  }
  Float s[8];
#pragma GCC unroll 2
  for (int i = 0; i < 2; ++i) {
    s[4 * i] = _mm256_shuffle_ps(t[4 * i], t[4 * i + 2], 0x44);
    s[4 * i + 1] = _mm256_shuffle_ps(t[4 * i], t[4 * i + 2], 0xee);
    s[4 * i + 2] = _mm256_shuffle_ps(t[4 * i + 1], t[4 * i + 3], 0x44);
    s[4 * i + 3] = _mm256_shuffle_ps(t[4 * i + 1], t[4 * i + 3], 0xee);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    r[i] = _mm256_permute2f128_ps(s[i], s[4 + i], 0x20);
    r[4 + i] = _mm256_permute2f128_ps(s[i], s[4 + i], 0x31);
  }
}

/// Lane c is the sum of r[c]'s lanes.
inline Float sums_of_lanes(const Float (&r)[kLanes]) {
  const Float s = _mm256_hadd_ps(_mm256_hadd_ps(r[0], r[1]), _mm256_hadd_ps(r[2], r[3]));
  const Float t = _mm256_hadd_ps(_mm256_hadd_ps(r[4], r[5]), _mm256_hadd_ps(r[6], r[7]));
  return add(_mm256_permute2f128_ps(s, t, 0x20), _mm256_permute2f128_ps(s, t, 0x31));
}

}  // namespace heddle::engine::cpu::HEDDLE_CPU_LEVEL
