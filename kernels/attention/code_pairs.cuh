// Codes of quantised keys and values as pairs of f16, which holds each of them exactly: operands of
// tensor cores, before their scales.
//
// A nibble or a byte alone in the low bits of an f16 is that many of the smallest numbers, 2^-24: a
// mask makes operands of codes, and what was added to codes lest they be negative is taken from
// sums, once.
#pragma once

#include "../ptx/e4m3.cuh"
#include "../ptx/math.cuh"
#include "codes.cuh"

namespace heddle::attention {

/// of: of a word of codes kCount pairs. Pair i holds factor(i) * (code + kAbove) for two codes, in
/// units of 2^-kUnitBits; low_code and high_code say of which. interleave<0> and <1> of two words:
/// codes of the first and the second half of both, so that pair i holds code i of one half of `a`
/// and of `b`.
template <typename Code>
struct CodePairs;

inline constexpr u32 kSmallestF16 = 24;

/// Pair i of a word holds codes 2 i and 2 i + 1.
struct BytePairs {
  static constexpr int kCount = 2;
  HEDDLE_DEVICE static constexpr int low_code(int pair) { return 2 * pair; }
  HEDDLE_DEVICE static constexpr int high_code(int pair) { return 2 * pair + 1; }
  HEDDLE_DEVICE static constexpr u32 factor(int) { return 1; }
  template <int kHalf>
  HEDDLE_DEVICE static u32 interleave(u32 a, u32 b) {
    return ptx::bytes_of<(kHalf == 0 ? 0x5140 : 0x7362)>(a, b);
  }
};

template <>
struct CodePairs<i8> : BytePairs {
  static constexpr u32 kAbove = 128;
  static constexpr u32 kUnitBits = kSmallestF16;
  HEDDLE_DEVICE static void of(u32 codes, u32* pairs) {
    const u32 above = codes ^ 0x80808080u;
    pairs[0] = ptx::bytes_of<0x4140>(above, 0);
    pairs[1] = ptx::bytes_of<0x4342>(above, 0);
  }
};

template <>
struct CodePairs<f8e4m3> : BytePairs {
  static constexpr u32 kAbove = 0;
  static constexpr u32 kUnitBits = 0;
  HEDDLE_DEVICE static void of(u32 codes, u32* pairs) {
#if __CUDA_ARCH__ >= 890
    ptx::unpack_e4m3_x4(codes, pairs);
#else
    pairs[0] = ptx::unpack_e4m3_above(ptx::bytes_of<0x1404>(codes, 0));
    pairs[1] = ptx::unpack_e4m3_above(ptx::bytes_of<0x3424>(codes, 0));
#endif
  }
};

/// Codes of 4 bits, 8 above their numbers: pair i of a word holds codes i and i + 4.
template <>
struct CodePairs<u8> {
  static constexpr u32 kAbove = 8;
  static constexpr u32 kUnitBits = kSmallestF16;
  static constexpr int kCount = 4;
  HEDDLE_DEVICE static constexpr int low_code(int pair) { return pair; }
  HEDDLE_DEVICE static constexpr int high_code(int pair) { return pair + 4; }
  HEDDLE_DEVICE static constexpr u32 factor(int pair) { return pair % 2 == 0 ? 1 : 16; }
  template <int kHalf>
  HEDDLE_DEVICE static u32 interleave(u32 a, u32 b) {
    return ptx::bytes_of<(kHalf == 0 ? 0x5410 : 0x7632)>(a, b);
  }
  HEDDLE_DEVICE static void of(u32 codes, u32* pairs) {
#pragma unroll
    for (int byte = 0; byte < 2; ++byte, codes >>= 8) {
      pairs[2 * byte] = codes & 0x000f000f;
      pairs[2 * byte + 1] = codes & 0x00f000f0;
    }
  }
};

/// Of pair i of codes the two numbers that stand for 0.
template <typename Code>
HEDDLE_DEVICE constexpr u32 zero_pair(int pair) {
  return CodePairs<Code>::kAbove * CodePairs<Code>::factor(pair) * 0x00010001u;
}
HEDDLE_DEVICE constexpr u32 negative_pair(u32 pair) { return pair | 0x80008000u; }

}  // namespace heddle::attention
