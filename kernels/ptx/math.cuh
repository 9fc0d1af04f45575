// Approximate functions, one instruction each, and conversions between f32 and packed 16-bit pairs.
#pragma once

#include "types.cuh"

namespace heddle::ptx {

/// 2^x to 2 ulp; 2^-inf = 0.
HEDDLE_DEVICE float exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

/// log2(x); log2(0) = -inf.
HEDDLE_DEVICE float log2(float x) {
  float y;
  asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

HEDDLE_DEVICE float reciprocal(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

/// a / b to 2 ulp: a handful of instructions, where IEEE's division has a path of its own.
HEDDLE_DEVICE float divide(float a, float b) {
  float y;
  asm("div.full.f32 %0, %1, %2;" : "=f"(y) : "f"(a), "f"(b));
  return y;
}

/// To 1 ulp.
HEDDLE_DEVICE float square_root(float x) {
  float y;
  asm("sqrt.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

/// The number of a number and a NaN.
HEDDLE_DEVICE float max(float a, float b) {
  float y;
  asm("max.f32 %0, %1, %2;" : "=f"(y) : "f"(a), "f"(b));
  return y;
}

/// As IEEE 754's minimum and maximum: NaN of a NaN.
HEDDLE_DEVICE float min_or_nan(float a, float b) {
  float y;
  asm("min.NaN.f32 %0, %1, %2;" : "=f"(y) : "f"(a), "f"(b));
  return y;
}
HEDDLE_DEVICE float max_or_nan(float a, float b) {
  float y;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(y) : "f"(a), "f"(b));
  return y;
}

HEDDLE_DEVICE float fma(float a, float b, float c) {
  float y;
  asm("fma.rn.ftz.f32 %0, %1, %2, %3;" : "=f"(y) : "f"(a), "f"(b), "f"(c));
  return y;
}

/// a * b cut off instead of rounded: what is too large for an f32 becomes the largest one.
HEDDLE_DEVICE float multiply_toward_zero(float a, float b) {
  float y;
  asm("mul.rz.ftz.f32 %0, %1, %2;" : "=f"(y) : "f"(a), "f"(b));
  return y;
}

/// Two f32 rounded to T and packed, `low` in the lower half.
template <typename T>
HEDDLE_DEVICE u32 pack(float low, float high) {
  u32 pair;
  if constexpr (is_same<T, bf16>)
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  else
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}

/// The two f32 of a packed pair of T.
template <typename T>
HEDDLE_DEVICE void unpack(u32 pair, float& low, float& high) {
  if constexpr (is_same<T, bf16>) {
    low = __uint_as_float(pair << 16);
    high = __uint_as_float(pair & 0xffff0000u);
  } else {
    asm("{\n.reg .f16 l, h;\n"
        "mov.b32 {l, h}, %2;\n"
        "cvt.f32.f16 %0, l;\n"
        "cvt.f32.f16 %1, h;\n}"
        : "=f"(low), "=f"(high)
        : "r"(pair));
  }
}

/// Two f16, 0xffff where the magnitude of a's is less than b's, else 0; NaNs are not less.
HEDDLE_DEVICE u32 magnitude_less_f16x2(u32 a, u32 b) {
  u32 mask;
  asm("{\n.reg .b32 m;\n"
      "abs.f16x2 m, %1;\n"
      "set.lt.u32.f16x2 %0, m, %2;\n}"
      : "=r"(mask)
      : "r"(a), "r"(b));
  return mask;
}

/// The bits of a where b and c differ. (Written as two operations it is two instructions.)
HEDDLE_DEVICE u32 and_differing(u32 a, u32 b, u32 c) {
  u32 result;
  asm("lop3.b32 %0, %1, %2, %3, 0x60;" : "=r"(result) : "r"(a), "r"(b), "r"(c));
  return result;
}

/// Bytes of `a` and `b` by the nibbles of a selector, the lowest first: 0 .. 3 are a's.
template <u32 kSelector>
HEDDLE_DEVICE u32 bytes_of(u32 a, u32 b) {
  u32 word;
  asm("prmt.b32 %0, %1, %2, %3;" : "=r"(word) : "r"(a), "r"(b), "n"(kSelector));
  return word;
}

/// 0xffff where the sign of a half is set, else 0. (__byte_perm does not repeat signs.)
HEDDLE_DEVICE u32 signs_of_halves(u32 pair) {
  u32 mask;
  asm("prmt.b32 %0, %1, 0, 0xbb99;" : "=r"(mask) : "r"(pair));
  return mask;
}

/// One element widened to f32.
HEDDLE_DEVICE float widen(bf16 x) { return __uint_as_float(static_cast<u32>(x.bits) << 16); }
HEDDLE_DEVICE float widen(f16 x) {
  float y;
  asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x.bits));
  return y;
}
HEDDLE_DEVICE float widen(float x) { return x; }

/// One f32 rounded to T.
template <typename T>
HEDDLE_DEVICE T narrow(float x) {
  if constexpr (is_same<T, float>) {
    return x;
  } else {
    T y;
    if constexpr (is_same<T, bf16>)
      asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(y.bits) : "f"(x));
    else
      asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y.bits) : "f"(x));
    return y;
  }
}

}  // namespace heddle::ptx
