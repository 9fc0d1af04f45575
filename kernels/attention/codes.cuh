// Codes of quantised keys and values: a number by its scale s as i8, as 4 bits, two to a byte, or
// as f8e4m3. 0 where s is 0.
#pragma once

#include "../ptx/types.cuh"

namespace heddle::attention {

/// rint(x / s) from `low` to `high`; 0 of no number.
HEDDLE_DEVICE int integer_code(float x, float s, float low, float high) {
  const float code = s == 0 ? 0.0f : x / s;
  if (!(code == code)) return 0;
  return static_cast<int>(fminf(fmaxf(rintf(code), low), high));
}

/// The nearest f8e4m3, of two the even one; what is larger becomes 448.
HEDDLE_DEVICE u32 f8e4m3_code(float x) {
  const u32 bits = __float_as_uint(x), sign = bits >> 24 & 0x80;
  const float size = fminf(fabsf(x), 448.0f);
  // Below 2^-6 codes are whole multiples of 2^-9.
  if (size < 0.015625f) return sign | static_cast<u32>(rintf(size * 512.0f));
  u32 number = __float_as_uint(size);
  number += 0x7ffff + (number >> 20 & 1);
  return sign | ((number >> 20) - (120 << 3));
}

/// What an f8e4m3 is: NaN of 127 and of 255.
HEDDLE_DEVICE float f8e4m3_number(u32 code) {
  const u32 sign = (code & 0x80) << 24, size = code & 0x7f;
  // Below 2^-6 codes are whole multiples of 2^-9.
  const u32 bits = size < 8     ? __float_as_uint(static_cast<float>(size) / 512.0f)
                   : size < 127 ? (size << 20) + (120u << 23)
                                : 0x7fffffffu;
  return __uint_as_float(sign | bits);
}

/// The nearest f8e5m2, of two the even one; what is larger becomes 57344.
HEDDLE_DEVICE u32 f8e5m2_code(float x) {
  const u32 bits = __float_as_uint(x), sign = bits >> 24 & 0x80;
  const float size = fminf(fabsf(x), 57344.0f);
  // Below 2^-14 codes are whole multiples of 2^-16.
  if (size < 6.103515625e-5f) return sign | static_cast<u32>(rintf(size * 65536.0f));
  u32 number = __float_as_uint(size);
  number += 0xfffff + (number >> 21 & 1);
  return sign | ((number >> 21) - (112 << 2));
}

/// What an f8e5m2 is: infinity of 124 and of 252, NaN above.
HEDDLE_DEVICE float f8e5m2_number(u32 code) {
  const u32 sign = (code & 0x80) << 24, size = code & 0x7f;
  const u32 bits = size < 4     ? __float_as_uint(static_cast<float>(size) / 65536.0f)
                   : size < 124 ? (size << 21) + (112u << 23)
                                : 0x7f800000u | (size & 3) << 21;
  return __uint_as_float(sign | bits);
}

/// Of the type that holds codes: how many columns an element has, the code of one, and what it is
/// before its scale.
template <typename T>
struct Codes {
  static constexpr int kColumns = 0;  ///< elements are numbers
};
template <>
struct Codes<i8> {
  static constexpr int kColumns = 1;
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
  HEDDLE_DEVICE static u32 of(float x, float s) {
    return static_cast<u32>(integer_code(x, s, -8, 7) + 8);
  }
  HEDDLE_DEVICE static float number(u32 code) { return static_cast<float>(code) - 8.0f; }
};
template <>
struct Codes<f8e4m3> {
  static constexpr int kColumns = 1;
  HEDDLE_DEVICE static u32 of(float x, float s) {
    const float number = s == 0 ? 0.0f : x / s;
    return number == number ? f8e4m3_code(number) : 0;
  }
  HEDDLE_DEVICE static float number(u32 code) { return f8e4m3_number(code); }
};

}  // namespace heddle::attention
