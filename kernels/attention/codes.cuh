// Codes of quantised keys and values: a number by its scale s as i8, as 4 bits, two to a byte, or
// as f8e4m3. 0 where s is 0, and of no number.
#pragma once

#include "../ptx/types.cuh"

namespace heddle::attention {

/// rint(x / s) from `low` to `high`; 0 of no number.
HEDDLE_DEVICE int integer_code(float x, float s, float low, float high) {
  const float code = s == 0 ? 0.0f : x / s;
  if (!(code == code)) return 0;
  return static_cast<int>(fminf(fmaxf(rintf(code), low), high));
}

/// The nearest code of an fp8 type with so many bits of mantissa, whose exponents are kBias above
/// theirs; of two the even one, and for what is larger than `largest` its own.
template <int kMantissa, int kBias>
HEDDLE_DEVICE u32 fp8_code(float x, float largest) {
  constexpr int kDropped = 23 - kMantissa;
  // Below the first normal number codes are whole multiples of a step.
  constexpr float kNormal = 2.0f / (1 << kBias), kPerStep = (1 << (kBias + kMantissa)) / 2.0f;
  const u32 sign = __float_as_uint(x) >> 24 & 0x80;
  const float size = fminf(fabsf(x), largest);
  if (size < kNormal) return sign | static_cast<u32>(rintf(size * kPerStep));
  u32 number = __float_as_uint(size);
  number += (1u << (kDropped - 1)) - 1 + (number >> kDropped & 1);
  return sign | ((number >> kDropped) - ((127 - kBias) << kMantissa));
}

/// What a code is; `beyond` are the bits of an f32 that codes from `first_beyond` on are.
template <int kMantissa, int kBias>
HEDDLE_DEVICE float fp8_number(u32 code, u32 first_beyond, u32 beyond) {
  constexpr float kPerStep = (1 << (kBias + kMantissa)) / 2.0f;
  const u32 sign = (code & 0x80) << 24, size = code & 0x7f;
  const u32 bits = size < 1u << kMantissa ? __float_as_uint(static_cast<float>(size) / kPerStep)
                   : size < first_beyond  ? (size << (23 - kMantissa)) + ((127u - kBias) << 23)
                                          : beyond;
  return __uint_as_float(sign | bits);
}

HEDDLE_DEVICE u32 f8e4m3_code(float x) { return fp8_code<3, 7>(x, 448.0f); }
HEDDLE_DEVICE u32 f8e5m2_code(float x) { return fp8_code<2, 15>(x, 57344.0f); }
/// NaN of 127 and of 255.
HEDDLE_DEVICE float f8e4m3_number(u32 code) { return fp8_number<3, 7>(code, 127, 0x7fffffffu); }
/// Infinity of 124 and of 252, NaN above.
HEDDLE_DEVICE float f8e5m2_number(u32 code) {
  return fp8_number<2, 15>(code, 124, 0x7f800000u | (code & 3) << 21);
}

/// Of the type that holds codes: how many columns an element has, a word of codes of 0, the code of
/// a number, and what a code is before its scale.
template <typename T>
struct Codes {
  static constexpr int kColumns = 0;  ///< elements are numbers
  static constexpr u32 kZeros = 0;
};
template <>
struct Codes<i8> {
  static constexpr int kColumns = 1;
  static constexpr u32 kZeros = 0;
  HEDDLE_DEVICE static u32 of(float x, float s) {
    return static_cast<u32>(integer_code(x, s, -128, 127)) & 0xff;
  }
  HEDDLE_DEVICE static float number(u32 code) {
    return static_cast<float>(static_cast<i8>(static_cast<u8>(code)));
  }
};
template <>
struct Codes<u8> {
  static constexpr int kColumns = 2;  ///< that of the even one is low, and both are 8 above
  static constexpr u32 kZeros = 0x88888888;
  HEDDLE_DEVICE static u32 of(float x, float s) {
    return static_cast<u32>(integer_code(x, s, -8, 7) + 8);
  }
  HEDDLE_DEVICE static float number(u32 code) { return static_cast<float>(code) - 8.0f; }
};
template <>
struct Codes<f8e4m3> {
  static constexpr int kColumns = 1;
  static constexpr u32 kZeros = 0, kNan = 0x7f;
  /// Of no number 0 too; NaN of a number whose scale is NaN, or that is infinite as its scale is.
  HEDDLE_DEVICE static u32 of(float x, float s) {
    if (s == 0 || !(x == x)) return 0;
    const float number = x / s;
    return number == number ? f8e4m3_code(number) : kNan;
  }
  HEDDLE_DEVICE static float number(u32 code) { return f8e4m3_number(code); }
};

}  // namespace heddle::attention
