// kernels/ptx/e4m3.cuh.
#pragma once

#include "math.cuh"

namespace heddle::ptx {

inline constexpr float kLargestE4m3 = 448.0f;

HEDDLE_DEVICE u32 pack_e4m3(float low, float high) {
  return emulator::e4m3_of(low) | emulator::e4m3_of(high) << 8;
}

HEDDLE_DEVICE u32 unpack_e4m3(u32 pair) {
  const auto half = [](u32 bits) -> u32 {
    return narrow_bits<f16>(emulator::number_of(emulator::Operand::e4m3, bits & 255));
  };
  return half(pair) | half(pair >> 8) << 16;
}

HEDDLE_DEVICE void unpack_e4m3_x4(u32 word, u32* pairs) {
  pairs[0] = unpack_e4m3(word);
  pairs[1] = unpack_e4m3(word >> 16);
}

HEDDLE_DEVICE u32 unpack_e4m3_above(u32 bytes) {
  return unpack_e4m3((bytes >> 8 & 255) | (bytes >> 16 & 0xff00));
}

}  // namespace heddle::ptx
