// Vectors of f64 for any instruction set: GCC's vector extension, and the instructions that it has
// no words for where the machine has them. It is compiled without contraction of products and sums
// (CMakeLists.txt): a sum is fused where multiply_add says so, and nowhere else.
#pragma once

#if defined(__AVX__)
#include <immintrin.h>
#endif

#include <cstdint>

#include "engine/cpu/kernel_shape.h"

namespace heddle::engine::cpu::HEDDLE_CPU_LEVEL {

#if defined(HEDDLE_CPU_LEVEL_AVX512)
inline constexpr KernelShape kShape = kAvx512F64Shape;
#elif defined(HEDDLE_CPU_LEVEL_AVX2)
inline constexpr KernelShape kShape = kAvx2F64Shape;
#else
inline constexpr KernelShape kShape = kPortableF64Shape;
#endif
inline constexpr int kLanes = kShape.lanes;
typedef double Float __attribute__((vector_size(8 * kLanes)));
typedef int64_t Mask __attribute__((vector_size(8 * kLanes)));

inline Float zero() { return Float{}; }
inline Float all(double x) { return x - zero(); }
inline Float lane_numbers() {
  Float x;
  for (int i = 0; i < kLanes; ++i) x[i] = i;
  return x;
}
inline Float load(const double* p) {
  Float x;
  __builtin_memcpy(&x, p, sizeof x);
  return x;
}
inline void store(double* p, Float x) { __builtin_memcpy(p, &x, sizeof x); }
inline Float load_first(const double* p, int n) {
  Float x = zero();
  __builtin_memcpy(&x, p, 8 * static_cast<unsigned>(n));
  return x;
}
inline void store_first(double* p, Float x, int n) {
  for (int i = 0; i < n; ++i) p[i] = x[i];
}

/// condition ? a : b.
inline Float select(Mask condition, Float a, Float b) { return condition ? a : b; }
inline Float add(Float a, Float b) { return a + b; }
inline Float subtract(Float a, Float b) { return a - b; }
inline Float multiply(Float a, Float b) { return a * b; }
inline Float divide(Float a, Float b) { return a / b; }
/// a * b + c, rounded once where the machine can.
inline Float multiply_add(Float a, Float b, Float c) {
#if defined(HEDDLE_CPU_LEVEL_AVX512)
  return (Float)_mm512_fmadd_pd((__m512d)a, (__m512d)b, (__m512d)c);
#elif defined(HEDDLE_CPU_LEVEL_AVX2)
  return (Float)_mm256_fmadd_pd((__m256d)a, (__m256d)b, (__m256d)c);
#else
  return a * b + c;
#endif
}
/// The lesser or greater; b if either is NaN.
inline Float min(Float a, Float b) { return a < b ? a : b; }
inline Float max(Float a, Float b) { return a > b ? a : b; }
inline Float absolute(Float a) { return (Float)((Mask)a & INT64_MAX); }
inline Float square_root(Float a) {
  for (int i = 0; i < kLanes; ++i) a[i] = __builtin_sqrt(a[i]);
  return a;
}

inline Mask less(Float a, Float b) { return a < b; }
inline Mask less_equal(Float a, Float b) { return a <= b; }
inline Mask equal(Float a, Float b) { return a == b; }

/// Adding and taking away 2^52 with the number's own sign rounds it; larger ones are integers.
inline Float round_to_integer(Float a) {
  const Float magic = (Float)(((Mask)a & INT64_MIN) | (Mask)all(0x1p52));
  return select(less(absolute(a), all(0x1p52)), (a + magic) - magic, a);
}
inline Float floor(Float a) {
  const Float rounded = round_to_integer(a);
  return rounded - select(less(a, rounded), all(1), zero());
}
inline Float ceil(Float a) {
  const Float rounded = round_to_integer(a);
  return rounded + select(less(rounded, a), all(1), zero());
}
/// a * 2^n for an integral n in [-1500, 1025], in two steps, neither of which leaves the range of
/// f64 where the result does not.
inline Float scale_by_power_of_two(Float a, Float n) {
#if defined(HEDDLE_CPU_LEVEL_AVX512)
  return (Float)_mm512_scalef_pd((__m512d)a, (__m512d)n);
#else
  // The sum with 1.5 * 2^52 has the integer in its lowest bits; that of a NaN is of no matter.
  const auto integer = [](Float x) { return (Mask)(x + all(0x1.8p52)) - (Mask)all(0x1.8p52); };
  const Mask whole = integer(n), half = whole >> 1;
  const auto power = [](Mask exponent) { return (Float)((exponent + 1023) << 52); };
  return a * power(half) * power(whole - half);
#endif
}

inline double sum_of_lanes(Float a) {
  for (int half = kLanes / 2; half > 0; half /= 2)
    for (int i = 0; i < half; ++i) a[i] += a[i + half];
  return a[0];
}
inline double max_of_lanes(Float a) {
  for (int i = 1; i < kLanes; ++i) a[0] = a[0] > a[i] ? a[0] : a[i];
  return a[0];
}

/// Lanes of a, and from kLanes on of b, by number. Clang has no such instruction by a variable.
inline Float shuffled(Float a, Float b, Mask lanes) {
#if __has_builtin(__builtin_shuffle)
  return __builtin_shuffle(a, b, lanes);
#else
  Float r;
  for (int i = 0; i < kLanes; ++i) r[i] = lanes[i] < kLanes ? a[lanes[i]] : b[lanes[i] - kLanes];
  return r;
#endif
}

/// As many rows as lanes, transposed in place: at each step the halves off the diagonal of ever
/// smaller blocks change places.
inline void transpose(Float (&r)[kLanes]) {
#pragma GCC unroll 4
  for (int half = kLanes / 2; half > 0; half /= 2) {
    Mask low, high;
#pragma GCC unroll 8
    for (int i = 0; i < kLanes; ++i) {
      const bool is_second = (i & half) != 0;
      low[i] = is_second ? kLanes + i - half : i;
      high[i] = is_second ? kLanes + i : i + half;
    }
#pragma GCC unroll 8
    for (int i = 0; i < kLanes; ++i) {
      if ((i & half) != 0) continue;
      const Float a = r[i], b = r[i + half];
      r[i] = shuffled(a, b, low);
      r[i + half] = shuffled(a, b, high);
    }
  }
}

/// Lane c is the sum of r[c]'s lanes.
inline Float sums_of_lanes(Float (&r)[kLanes]) {
  transpose(r);
#pragma GCC unroll 4
  for (int half = kLanes / 2; half > 0; half /= 2)
    for (int i = 0; i < half; ++i) r[i] += r[i + half];
  return r[0];
}

}  // namespace heddle::engine::cpu::HEDDLE_CPU_LEVEL
