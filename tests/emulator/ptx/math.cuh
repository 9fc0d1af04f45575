// kernels/ptx/math.cuh.
#pragma once

#include "types.cuh"

namespace heddle::ptx {

/// What an instruction with .ftz takes a subnormal number for, and gives in its place.
HEDDLE_DEVICE float flushed(float x) {
  return __builtin_fabsf(x) < 0x1p-126f ? __builtin_copysignf(0.0f, x) : x;
}

HEDDLE_DEVICE float exp2(float x) { return flushed(__builtin_exp2f(flushed(x))); }
HEDDLE_DEVICE float log2(float x) { return flushed(__builtin_log2f(flushed(x))); }
HEDDLE_DEVICE float reciprocal(float x) { return flushed(1 / flushed(x)); }
HEDDLE_DEVICE float divide(float a, float b) { return a / b; }
HEDDLE_DEVICE float square_root(float x) { return __builtin_sqrtf(x); }

HEDDLE_DEVICE float max(float a, float b) { return __builtin_fmaxf(a, b); }
HEDDLE_DEVICE float min_or_nan(float a, float b) {
  if (a != a || b != b) return __uint_as_float(0x7fffffff);
  return a < b ? a : b;
}
HEDDLE_DEVICE float max_or_nan(float a, float b) {
  if (a != a || b != b) return __uint_as_float(0x7fffffff);
  return a > b ? a : b;
}

HEDDLE_DEVICE float fma(float a, float b, float c) {
  return flushed(__builtin_fmaf(flushed(a), flushed(b), flushed(c)));
}

/// The product of two f32 is an f64.
HEDDLE_DEVICE float multiply_toward_zero(float a, float b) {
  const double exact = static_cast<double>(flushed(a)) * flushed(b);
  const float nearest = static_cast<float>(exact);
  if (nearest != nearest || exact == __builtin_inf() || exact == -__builtin_inf()) return nearest;
  const bool is_beyond = nearest > 0 ? nearest > exact : nearest < exact;
  return flushed(is_beyond ? __uint_as_float(__float_as_uint(nearest) - 1) : nearest);
}

HEDDLE_DEVICE u16 bits_of(_Float16 x) { return __builtin_bit_cast(u16, x); }
HEDDLE_DEVICE _Float16 f16_of(u32 bits) {
  return __builtin_bit_cast(_Float16, static_cast<u16>(bits));
}

template <typename T>
HEDDLE_DEVICE u16 narrow_bits(float x) {
  if constexpr (is_same<T, bf16>) {
    const u32 bits = __float_as_uint(x);
    if (x != x) return 0x7fff;
    return static_cast<u16>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
  } else {
    return x != x ? 0x7fff : bits_of(static_cast<_Float16>(x));
  }
}

template <typename T>
HEDDLE_DEVICE u32 pack(float low, float high) {
  return static_cast<u32>(narrow_bits<T>(high)) << 16 | narrow_bits<T>(low);
}

template <typename T>
HEDDLE_DEVICE void unpack(u32 pair, float& low, float& high) {
  if constexpr (is_same<T, bf16>) {
    low = __uint_as_float(pair << 16);
    high = __uint_as_float(pair & 0xffff0000u);
  } else {
    low = static_cast<float>(f16_of(pair));
    high = static_cast<float>(f16_of(pair >> 16));
  }
}

/// Of each half of the words.
template <typename Operation>
HEDDLE_DEVICE u32 of_halves(u32 a, u32 b, Operation operation) {
  return static_cast<u32>(operation(f16_of(a >> 16), f16_of(b >> 16))) << 16 |
         operation(f16_of(a), f16_of(b));
}

HEDDLE_DEVICE u32 magnitude_less_f16x2(u32 a, u32 b) {
  return of_halves(a & 0x7fff7fff, b,
                   [](_Float16 x, _Float16 y) { return static_cast<u16>(x < y ? 0xffff : 0); });
}
HEDDLE_DEVICE u32 and_differing(u32 a, u32 b, u32 c) { return a & (b ^ c); }

template <u32 kSelector>
HEDDLE_DEVICE u32 bytes_of(u32 a, u32 b) {
  return __byte_perm(a, b, kSelector);
}

HEDDLE_DEVICE u32 signs_of_halves(u32 pair) {
  return (pair >> 15 & 1) * 0xffff + (pair >> 31) * 0xffff0000;
}

HEDDLE_DEVICE float widen(bf16 x) { return __uint_as_float(static_cast<u32>(x.bits) << 16); }
HEDDLE_DEVICE float widen(f16 x) { return static_cast<float>(f16_of(x.bits)); }
HEDDLE_DEVICE float widen(float x) { return x; }

template <typename T>
HEDDLE_DEVICE T narrow(float x) {
  if constexpr (is_same<T, float>)
    return x;
  else
    return T{narrow_bits<T>(x)};
}

}  // namespace heddle::ptx
