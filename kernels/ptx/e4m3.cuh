// Conversions of e4m3 numbers, to f16, which holds all of them.
#pragma once

#include "types.cuh"

namespace heddle::ptx {

inline constexpr float kLargestE4m3 = 448.0f;

/// Two numbers rounded to nearest even within +-448, the first in the low byte (sm_89 and later).
HEDDLE_DEVICE u32 pack_e4m3(float low, float high) {
  u16 pair;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(high), "f"(low));
  return pair;
}

/// The two numbers of the low bytes of a word (sm_89 and later).
HEDDLE_DEVICE u32 unpack_e4m3(u32 pair) {
  u32 halves;
  asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(halves) : "h"(static_cast<u16>(pair)));
  return halves;
}

/// All four of a word, in their order (sm_89 and later).
HEDDLE_DEVICE void unpack_e4m3_x4(u32 word, u32* pairs) {
  asm("{\n.reg .b16 l, h;\n"
      "mov.b32 {l, h}, %2;\n"
      "cvt.rn.f16x2.e4m3x2 %0, l;\n"
      "cvt.rn.f16x2.e4m3x2 %1, h;\n}"
      : "=r"(pairs[0]), "=r"(pairs[1])
      : "r"(word));
}

/// Two in the upper bytes of halves. Of an f16 with the same bits behind its sign the exponent is 8
/// too small; what would be 480 is NaN.
HEDDLE_DEVICE u32 unpack_e4m3_above(u32 bytes) {
  u32 pair;
  asm("{\n.reg .b32 size, number, nan;\n"
      "shr.u32 size, %1, 1;\n"
      "and.b32 size, size, 0x3f803f80;\n"
      "mul.rn.f16x2 size, size, %2;\n"
      "set.gt.u32.f16x2 nan, size, %3;\n"
      "lop3.b32 number, %1, 0x80008000, size, 0xea;\n"
      "or.b32 %0, number, nan;\n}"
      : "=r"(pair)
      : "r"(bytes), "r"(0x5c005c00u), "r"(0x5f005f00u));
  return pair;
}

}  // namespace heddle::ptx
