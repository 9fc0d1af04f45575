// Codes of quantised keys and values as pairs of f16, which holds each of them exactly: operands of
// tensor cores, before their scales.
#pragma once

#include "codes.cuh"

namespace heddle::attention {

/// Bytes of `a` and `b` by the nibbles of a selector, the lowest first: 0 .. 3 are a's.
template <u32 kSelector>
HEDDLE_DEVICE u32 bytes_of(u32 a, u32 b) {
  u32 word;
  asm("prmt.b32 %0, %1, %2, %3;" : "=r"(word) : "r"(a), "r"(b), "n"(kSelector));
  return word;
}

HEDDLE_DEVICE u32 subtract_f16x2(u32 a, u32 b) {
  u32 difference;
  asm("sub.rn.f16x2 %0, %1, %2;" : "=r"(difference) : "r"(a), "r"(b));
  return difference;
}

/// a & mask | bits, which is one instruction.
template <u32 kMask, u32 kBits>
HEDDLE_DEVICE u32 masked_with(u32 a) {
  u32 word;
  asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(word) : "r"(a), "n"(kMask), "n"(kBits));
  return word;
}

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
    return bytes_of < kHalf == 0 ? 0x5140 : 0x7362 > (a, b);
  }
};

template <>
struct CodePairs<i8> : BytePairs {
  /// An f16 from 1024 to 2047 has a number's bits below: 1024 + 128 + x.
  HEDDLE_DEVICE static void of(u32 codes, u32* pairs) {
    const u32 above = codes ^ 0x80808080u;
    pairs[0] = subtract_f16x2(bytes_of<0x4140>(above, 0x64646464u), 0x64806480u);
    pairs[1] = subtract_f16x2(bytes_of<0x4342>(above, 0x64646464u), 0x64806480u);
  }
};

template <>
struct CodePairs<f8e4m3> : BytePairs {
  HEDDLE_DEVICE static void of(u32 codes, u32* pairs) {
#if __CUDA_ARCH__ >= 890
    asm("{\n.reg .b16 l, h;\n"
        "mov.b32 {l, h}, %2;\n"
        "cvt.rn.f16x2.e4m3x2 %0, l;\n"
        "cvt.rn.f16x2.e4m3x2 %1, h;\n}"
        : "=r"(pairs[0]), "=r"(pairs[1])
        : "r"(codes));
#else
    pairs[0] = of_bytes(bytes_of<0x1404>(codes, 0));
    pairs[1] = of_bytes(bytes_of<0x3424>(codes, 0));
#endif
  }

 private:
  /// Of codes in the upper bytes. Of an f16 with the same bits behind its sign the exponent is 8
  /// too small; what would be 480 is NaN.
  HEDDLE_DEVICE static u32 of_bytes(u32 codes) {
    u32 pair;
    asm("{\n.reg .b32 size, number, nan;\n"
        "shr.u32 size, %1, 1;\n"
        "and.b32 size, size, 0x3f803f80;\n"
        "mul.rn.f16x2 size, size, %2;\n"
        "set.gt.u32.f16x2 nan, size, %3;\n"
        "lop3.b32 number, %1, 0x80008000, size, 0xea;\n"
        "or.b32 %0, number, nan;\n}"
        : "=r"(pair)
        : "r"(codes), "r"(0x5c005c00u), "r"(0x5f005f00u));
    return pair;
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
    return bytes_of < kHalf == 0 ? 0x5410 : 0x7632 > (a, b);
  }
  HEDDLE_DEVICE static void of(u32 codes, u32* pairs) {
#pragma unroll
    for (int byte = 0; byte < 2; ++byte) {
      const u32 low = masked_with<0x000f000f, 0x64006400>(codes),
                high = masked_with<0x00f000f0, 0x64006400>(codes);
      // 1024 + 8 + x, and 1024 + 16 (8 + x).
      pairs[2 * byte] = subtract_f16x2(low, 0x64086408u);
      asm("fma.rn.f16x2 %0, %1, %2, %3;"
          : "=r"(pairs[2 * byte + 1])
          : "r"(high), "r"(0x2c002c00u), "r"(0xd480d480u));
      codes >>= 8;
    }
  }
};

}  // namespace heddle::attention
