// AVX-512 (F, BW, VL, DQ): sixteen lanes, thirty-two registers.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "engine/cpu/kernel_shape.h"

namespace heddle::engine::cpu::HEDDLE_CPU_LEVEL {

using Float = __m512;
using Mask = __mmask16;
#if defined(HEDDLE_CPU_LEVEL_BF16)
inline constexpr KernelShape kShape = kAvx512Bf16Shape;
#else
inline constexpr KernelShape kShape = kAvx512Shape;
#endif
inline constexpr int kLanes = kShape.lanes;

inline Mask first_lanes(int n) { return static_cast<Mask>((1u << n) - 1); }  // n < kLanes

inline Float zero() { return _mm512_setzero_ps(); }
inline Float all(float x) { return _mm512_set1_ps(x); }
inline Float lane_numbers() {
  return _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
}
inline Float load(const float* p) { return _mm512_loadu_ps(p); }
inline void store(float* p, Float x) { _mm512_storeu_ps(p, x); }
inline Float load_first(const float* p, int n) { return _mm512_maskz_loadu_ps(first_lanes(n), p); }
inline void store_first(float* p, Float x, int n) { _mm512_mask_storeu_ps(p, first_lanes(n), x); }

inline Float bf16_bits_to_float(__m256i x) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(x), 16));
}
inline Float load_bf16(const uint16_t* p) {
  return bf16_bits_to_float(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}
inline Float load_f16(const uint16_t* p) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}
inline Float integers_to_float(__m512i x) { return _mm512_cvtepi32_ps(x); }
inline Float load_i8(const int8_t* p) {
  return integers_to_float(
      _mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
}
/// Codes of 4 bits, the low one of a byte first, less 8: a lane has the 8 that its code is among,
/// with that in the lowest bits, which alone say what a permutation takes.
inline Float load_i4(const uint8_t* p) {
  const __m512i half = _mm512_setr_epi32(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1);
  const __m512i bits = _mm512_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28, 0, 4, 8, 12, 16, 20, 24, 28);
  const __m512i codes =
      _mm512_castsi128_si512(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
  const __m512i code = _mm512_srlv_epi32(_mm512_permutexvar_epi32(half, codes), bits);
  return _mm512_permutexvar_ps(
      code, _mm512_setr_ps(-8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7));
}
/// As f16, whose exponents begin 8 lower. Their conversion takes subnormal numbers as they are even
/// in a thread that takes those of f32 for 0, as XLA's do.
inline Float load_f8e4m3(const uint8_t* p) {
  const __m128i codes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  const __m128i all_but_sign = _mm_set1_epi8(127);
  const Mask is_nan = _mm_cmpeq_epi8_mask(_mm_and_si128(codes, all_but_sign), all_but_sign);
  // The sign, of which a wider number has more, is moved to two bits.
  const __m256i moved = _mm256_slli_epi16(_mm256_cvtepi8_epi16(codes), 7);
  const __m256i half = _mm256_and_si256(moved, _mm256_set1_epi16(static_cast<int16_t>(0xbfff)));
  const __m256i nan = _mm256_set1_epi16(0x7e00);
  return _mm512_mul_ps(_mm512_cvtph_ps(_mm256_mask_mov_epi16(half, is_nan, nan)),
                       _mm512_set1_ps(256));
}
/// Rounds to nearest even; a NaN stays a NaN.
inline __m256i to_bf16_bits(Float x) {
  const __m512i bits = _mm512_castps_si512(x);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  const __m512i rounded = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
  const __m512i quiet = _mm512_or_si512(bits, _mm512_set1_epi32(0x400000));
  const Mask is_nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
  return _mm512_cvtepi32_epi16(
      _mm512_srli_epi32(_mm512_mask_mov_epi32(rounded, is_nan, quiet), 16));
}
inline void store_bf16(uint16_t* p, Float x) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), to_bf16_bits(x));
}
inline void store_f16(uint16_t* p, Float x) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p),
                      _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}

inline Float add(Float a, Float b) { return _mm512_add_ps(a, b); }
inline Float subtract(Float a, Float b) { return _mm512_sub_ps(a, b); }
inline Float multiply(Float a, Float b) { return _mm512_mul_ps(a, b); }
inline Float divide(Float a, Float b) { return _mm512_div_ps(a, b); }
/// a * b + c, rounded once where the machine can.
inline Float multiply_add(Float a, Float b, Float c) { return _mm512_fmadd_ps(a, b, c); }
inline Float multiply_subtract(Float a, Float b, Float c) { return _mm512_fmsub_ps(a, b, c); }
/// The lesser or greater; b if either is NaN.
inline Float min(Float a, Float b) { return _mm512_min_ps(a, b); }
inline Float max(Float a, Float b) { return _mm512_max_ps(a, b); }
inline Float absolute(Float a) { return _mm512_abs_ps(a); }
inline Float square_root(Float a) { return _mm512_sqrt_ps(a); }
inline Float round_to_integer(Float a) {
  return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
inline Float floor(Float a) {
  return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
}
inline Float ceil(Float a) {
  return _mm512_roundscale_ps(a, _MM_FROUND_TO_POS_INF | _MM_FROUND_NO_EXC);
}
/// a * 2^n for an integral n in [-200, 128].
inline Float scale_by_power_of_two(Float a, Float n) { return _mm512_scalef_ps(a, n); }

inline Mask less(Float a, Float b) { return _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ); }
inline Mask less_equal(Float a, Float b) { return _mm512_cmp_ps_mask(a, b, _CMP_LE_OQ); }
inline Mask equal(Float a, Float b) { return _mm512_cmp_ps_mask(a, b, _CMP_EQ_OQ); }
/// condition ? a : b.
inline Float select(Mask condition, Float a, Float b) {
  return _mm512_mask_blend_ps(condition, b, a);
}

inline float sum_of_lanes(Float a) { return _mm512_reduce_add_ps(a); }
inline float max_of_lanes(Float a) { return _mm512_reduce_max_ps(a); }

/// Sixteen rows of sixteen lanes, transposed in place.
inline void transpose(Float (&r)[kLanes]) {
  __m512d t[16];
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) {
    t[2 * i] = _mm512_castps_pd(_mm512_unpacklo_ps(r[2 * i], r[2 * i + 1]));
    t[2 * i + 1] = _mm512_castps_pd(_mm512_unpackhi_ps(r[2 * i], r[2 * i + 1]));
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    r[4 * i] = _mm512_castpd_ps(_mm512_unpacklo_pd(t[4 * i], t[4 * i + 2]));
    r[4 * i + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(t[4 * i], t[4 * i + 2]));
    r[4 * i + 2] = _mm512_castpd_ps(_mm512_unpacklo_pd(t[4 * i + 1], t[4 * i + 3]));
    r[4 * i + 3] = _mm512_castpd_ps(_mm512_unpackhi_pd(t[4 * i + 1], t[4 * i + 3]));
  }
  // r[4g + c] now holds, in 128-bit quarter q, column 4q + c of rows 4g .. 4g + 3.
  Float s[16];
#pragma GCC unroll 4
  for (int c = 0; c < 4; ++c) {
    const Float low01 = _mm512_shuffle_f32x4(r[c], r[4 + c], 0x44);
    const Float high01 = _mm512_shuffle_f32x4(r[c], r[4 + c], 0xee);
    const Float low23 = _mm512_shuffle_f32x4(r[8 + c], r[12 + c], 0x44);
    const Float high23 = _mm512_shuffle_f32x4(r[8 + c], r[12 + c], 0xee);
    s[c] = _mm512_shuffle_f32x4(low01, low23, 0x88);
    s[4 + c] = _mm512_shuffle_f32x4(low01, low23, 0xdd);
    s[8 + c] = _mm512_shuffle_f32x4(high01, high23, 0x88);
    s[12 + c] = _mm512_shuffle_f32x4(high01, high23, 0xdd);
  }
#pragma GCC unroll 16
  for (int i = 0; i < 16; ++i) r[i] = s[i];
}

/// Lane c is the sum of r[c]'s lanes.
inline Float sums_of_lanes(const Float (&r)[kLanes]) {
  Float s[4];  // quarter q, lane c of s[g]: the sum of quarter q of r[4g + c]
#pragma GCC unroll 4
  for (int g = 0; g < 4; ++g) {
    const Float* x = r + 4 * g;
    const Float low = add(_mm512_unpacklo_ps(x[0], x[1]), _mm512_unpackhi_ps(x[0], x[1]));
    const Float high = add(_mm512_unpacklo_ps(x[2], x[3]), _mm512_unpackhi_ps(x[2], x[3]));
    const __m512d a = _mm512_castps_pd(low), b = _mm512_castps_pd(high);
    s[g] =
        add(_mm512_castpd_ps(_mm512_unpacklo_pd(a, b)), _mm512_castpd_ps(_mm512_unpackhi_pd(a, b)));
  }
  const Float t =
      add(_mm512_shuffle_f32x4(s[0], s[1], 0x44), _mm512_shuffle_f32x4(s[0], s[1], 0xee));
  const Float u =
      add(_mm512_shuffle_f32x4(s[2], s[3], 0x44), _mm512_shuffle_f32x4(s[2], s[3], 0xee));
  return add(_mm512_shuffle_f32x4(t, u, 0x88), _mm512_shuffle_f32x4(t, u, 0xdd));
}

#if defined(HEDDLE_CPU_LEVEL_BF16)
/// The first and the second number of each pair.
inline Float low_of_pairs(Float pairs) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_castps_si512(pairs), 16));
}
inline Float high_of_pairs(Float pairs) {
  return _mm512_castsi512_ps(_mm512_and_si512(_mm512_castps_si512(pairs),
                                              _mm512_set1_epi32(static_cast<int>(0xffff0000))));
}
/// sum + a.low * b.low + a.high * b.high of the bf16 pairs in each lane.
inline Float add_dot_of_pairs(Float a, Float b, Float sum) {
  return _mm512_dpbf16_ps(sum, reinterpret_cast<__m512bh>(b), reinterpret_cast<__m512bh>(a));
}
/// bf16 to nearest even, numbers below the normal range to 0.
inline __m256i to_bf16_fast(Float x) { return reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(x)); }
inline void store_bf16_bits(uint16_t* p, __m256i bits) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), bits);
}
inline void store_bf16_fast(uint16_t* p, Float x) { store_bf16_bits(p, to_bf16_fast(x)); }
/// Two vectors of them, side by side.
inline void store_bf16_fast(uint16_t* p, Float first, Float second) {
  _mm512_storeu_si512(p, reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(second, first)));
}
/// The bf16 that a number begins with.
inline Float cut_to_bf16(Float x) { return high_of_pairs(x); }
/// Lane by lane the pair of those that two numbers begin with.
inline Float pair_up_cut(Float low, Float high) {
  return _mm512_castsi512_ps(_mm512_or_si512(_mm512_srli_epi32(_mm512_castps_si512(low), 16),
                                             _mm512_castps_si512(cut_to_bf16(high))));
}
/// Lane by lane the pair (low, high).
inline Float pair_up(__m256i low, __m256i high) {
  return _mm512_castsi512_ps(_mm512_or_si512(_mm512_cvtepu16_epi32(low),
                                             _mm512_slli_epi32(_mm512_cvtepu16_epi32(high), 16)));
}
inline Float pair_up(const uint16_t* low, const uint16_t* high) {
  return pair_up(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(low)),
                 _mm256_loadu_si256(reinterpret_cast<const __m256i*>(high)));
}
/// Whole numbers that lie as words.
inline Float load_integers(const float* p) { return integers_to_float(_mm512_loadu_si512(p)); }
/// Rounded to whole numbers of 31 bits, whose four digits, each with a sign, go to places `pitch`
/// apart: x = sum of 256^n digit_n.
inline void store_digits(int8_t* p, int64_t pitch, Float x) {
  const __m512i carry = _mm512_set1_epi32(0x808080);
  __m512i digits = _mm512_xor_si512(_mm512_add_epi32(_mm512_cvtps_epi32(x), carry), carry);
  for (int n = 0; n < 4; ++n) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p + n * pitch), _mm512_cvtepi32_epi8(digits));
    digits = _mm512_srli_epi32(digits, 8);
  }
}
/// 64 codes of 4 bits, less 8.
inline void widen_i4(const uint8_t* p, int8_t* out) {
  const __m512i bytes =
      _mm512_cvtepu8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  const __m512i both = _mm512_or_si512(bytes, _mm512_slli_epi16(bytes, 4));
  const __m512i codes = _mm512_and_si512(both, _mm512_set1_epi8(15));
  _mm512_storeu_si512(out, _mm512_sub_epi8(codes, _mm512_set1_epi8(8)));
}
/// 64 codes as bf16, which has all their numbers.
inline void widen_f8e4m3(const uint8_t* p, uint16_t* out) {
  // Eighths of the least normal number, 2^-6.
  const __m512i subnormal = _mm512_zextsi128_si512(
      _mm_setr_epi16(0, 0x3b00, 0x3b80, 0x3bc0, 0x3c00, 0x3c20, 0x3c40, 0x3c60));
  for (int n = 0; n < 64; n += 32) {
    const __m512i bits =
        _mm512_cvtepu8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + n)));
    const __m512i magnitude = _mm512_and_si512(bits, _mm512_set1_epi16(127));
    // Exponents begin 120 lower.
    __m512i value = _mm512_add_epi16(_mm512_slli_epi16(magnitude, 4), _mm512_set1_epi16(120 << 7));
    value = _mm512_mask_permutexvar_epi16(
        value, _mm512_cmplt_epu16_mask(magnitude, _mm512_set1_epi16(8)), magnitude, subnormal);
    value = _mm512_mask_mov_epi16(value, _mm512_cmpeq_epi16_mask(magnitude, _mm512_set1_epi16(127)),
                                  _mm512_set1_epi16(0x7fc0));
    const __m512i sign = _mm512_slli_epi16(_mm512_and_si512(bits, _mm512_set1_epi16(128)), 8);
    _mm512_storeu_si512(out + n, _mm512_or_si512(value, sign));
  }
}
/// 64 bytes of each of four rows as words of four, one of each row; 16 words to places `pitch`
/// words apart.
inline void interleave_four(const int8_t* const (&row)[4], float* out, int64_t pitch) {
  // Instructions that interleave do so in each quarter of a vector: word 4 q + n of a row goes to
  // its quarter n beforehand.
  const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
  __m512i x[4];
  for (int r = 0; r < 4; ++r) x[r] = _mm512_permutexvar_epi32(order, _mm512_loadu_si512(row[r]));
  const __m512i low[2] = {_mm512_unpacklo_epi8(x[0], x[1]), _mm512_unpacklo_epi8(x[2], x[3])};
  const __m512i high[2] = {_mm512_unpackhi_epi8(x[0], x[1]), _mm512_unpackhi_epi8(x[2], x[3])};
  _mm512_storeu_si512(out, _mm512_unpacklo_epi16(low[0], low[1]));
  _mm512_storeu_si512(out + pitch, _mm512_unpackhi_epi16(low[0], low[1]));
  _mm512_storeu_si512(out + 2 * pitch, _mm512_unpacklo_epi16(high[0], high[1]));
  _mm512_storeu_si512(out + 3 * pitch, _mm512_unpackhi_epi16(high[0], high[1]));
}
#endif

}  // namespace heddle::engine::cpu::HEDDLE_CPU_LEVEL
