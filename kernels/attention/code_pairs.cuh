// Codes of quantised keys and values as pairs of f16, which holds each of them exactly: operands of
// tensor cores, before their scales.
#pragma once

#include "../ptx/e4m3.cuh"
#include "../ptx/math.cuh"
#include "codes.cuh"

namespace heddle::attention {

/// Of a word of codes: kCount pairs, and which two codes each holds. interleave<0> and <1> of two
/// words: codes of the first and the second half of both, so that pair i holds code i of one half
/// of `a` and of `b`.
template <typename Code>
struct CodePairs;

/// Pair i of a word holds codes 2 i and 2 i + 1.
struct BytePairs {
  static constexpr int kCount = 2;
  HEDDLE_DEVICE static constexpr int low_code(int pair) { return 2 * pair; }
  HEDDLE_DEVICE static constexpr int high_code(int pair) { return 2 * pair + 1; }
  template <int kHalf>
  HEDDLE_DEVICE static u32 interleave(u32 a, u32 b) {
    return ptx::bytes_of<(kHalf == 0 ? 0x5140 : 0x7362)>(a, b);
  }
};

template <>
struct CodePairs<i8> : BytePairs {
  /// An f16 from 1024 to 2047 has a number's bits below: 1024 + 128 + x.
  HEDDLE_DEVICE static void of(u32 codes, u32* pairs) {
    const u32 above = codes ^ 0x80808080u;
    pairs[0] = ptx::subtract_f16x2(ptx::bytes_of<0x4140>(above, 0x64646464u), 0x64806480u);
    pairs[1] = ptx::subtract_f16x2(ptx::bytes_of<0x4342>(above, 0x64646464u), 0x64806480u);
  }
};

template <>
struct CodePairs<f8e4m3> : BytePairs {
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
  static constexpr int kCount = 4;
  HEDDLE_DEVICE static constexpr int low_code(int pair) { return pair; }
  HEDDLE_DEVICE static constexpr int high_code(int pair) { return pair + 4; }
  template <int kHalf>
  HEDDLE_DEVICE static u32 interleave(u32 a, u32 b) {
    return ptx::bytes_of<(kHalf == 0 ? 0x5410 : 0x7632)>(a, b);
  }
  HEDDLE_DEVICE static void of(u32 codes, u32* pairs) {
#pragma unroll
    for (int byte = 0; byte < 2; ++byte) {
      const u32 low = ptx::masked_with<0x000f000f, 0x64006400>(codes),
                high = ptx::masked_with<0x00f000f0, 0x64006400>(codes);
      // 1024 + 8 + x, and 1024 + 16 (8 + x).
      pairs[2 * byte] = ptx::subtract_f16x2(low, 0x64086408u);
      pairs[2 * byte + 1] = ptx::fma_f16x2(high, 0x2c002c00u, 0xd480d480u);
      codes >>= 8;
    }
  }
};

}  // namespace heddle::attention
