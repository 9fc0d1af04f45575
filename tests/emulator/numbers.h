// Elements of matrices as f32, and back.
#pragma once

#include <bit>

#include "device.h"

namespace heddle::emulator {

inline float number_of(Operand type, u32 bits) {
  switch (type) {
    case Operand::bf16:
      return std::bit_cast<float>(bits << 16);
    case Operand::f16:
      return static_cast<float>(std::bit_cast<_Float16>(static_cast<u16>(bits)));
    case Operand::e4m3:
      break;
  }
  const u32 exponent = bits >> 3 & 15, mantissa = bits & 7;
  if (exponent == 15 && mantissa == 7) return __builtin_nanf("");
  const float size = exponent == 0 ? static_cast<float>(mantissa) * 0x1p-9f
                                   : std::bit_cast<float>((exponent + 120) << 23 | mantissa << 20);
  return bits & 128 ? -size : size;
}

/// To nearest even, within +-448.
inline u32 e4m3_of(float x) {
  const u32 sign = std::bit_cast<u32>(x) >> 24 & 128;
  const float size = __builtin_fabsf(x);
  if (size != size) return 127;
  if (size >= 448) return sign | 126;
  // Multiples of the step: 2^-9 below the normal range.
  const int exponent = size < 0x1p-6f ? -6 : static_cast<int>(std::bit_cast<u32>(size) >> 23) - 127;
  const auto steps = static_cast<u32>(__builtin_rintf(__builtin_scalbnf(size, 3 - exponent)));
  // Eight steps are the next binade's first.
  return sign | (static_cast<u32>(exponent + 6) * 8 + steps);
}

}  // namespace heddle::emulator
