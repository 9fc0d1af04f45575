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

/// Of the type that holds codes: how many columns an element has, and the code of one.
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
};
template <>
struct Codes<u8> {
  static constexpr int kColumns = 2;  ///< that of the even one is low, and both are 8 above
  HEDDLE_DEVICE static u32 of(float x, float s) {
    return static_cast<u32>(integer_code(x, s, -8, 7) + 8);
  }
};
template <>
struct Codes<f8e4m3> {
  static constexpr int kColumns = 1;
  HEDDLE_DEVICE static u32 of(float x, float s) {
    const float number = s == 0 ? 0.0f : x / s;
    return number == number ? f8e4m3_code(number) : 0;
  }
};

}  // namespace heddle::attention
