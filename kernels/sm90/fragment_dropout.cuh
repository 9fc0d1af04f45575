// Dropout of the weights a thread holds of a 64 x kN accumulator.
#pragma once

#include "../attention/dropout.cuh"
#include "../tile/fragment.cuh"

namespace heddle::sm90 {

/// Which of them are dropped, found before they are there.
template <attention::Dropout kDropout, int kN>
struct FragmentDropout;

template <int kN>
struct FragmentDropout<attention::Dropout::none, kN> {};

template <int kN>
struct FragmentDropout<attention::Dropout::philox, kN> {
  u32 low[kN / 16][4];  ///< a half for each weight, in the order of pack_fragment

  /// `row` is the thread's first, `first_key` its first column.
  HEDDLE_DEVICE void draw(const attention::DropoutBits<attention::Dropout::philox>& bits, int row,
                          int first_key) {
#pragma unroll
    for (int k = 0; k < kN / 16; ++k) {
      const attention::Words4 words = bits.words(row, first_key + 16 * k);
#pragma unroll
      for (int i = 0; i < 4; ++i) low[k][i] = bits.low_halves(words.word[i]);
    }
  }
  HEDDLE_DEVICE u32 low_halves(int k, int i) const { return low[k][i]; }
};

template <int kN>
struct FragmentDropout<attention::Dropout::threefry, kN> {
  static_assert(kN <= 128);
  u64 low;  ///< bit i is value i

  HEDDLE_DEVICE void draw(const attention::DropoutBits<attention::Dropout::threefry>& bits, int row,
                          int first_key) {
    // A loop that is not unrolled: unrolled, the kernel takes 4 to 5 s to compile instead of 2, and
    // runs 5 to 6 % faster. Its index cannot name a register.
    low = 0;
#pragma unroll 1
    for (int i = 0; i < kN / 2; i += 4) {
      const int key = first_key + tile::fragment_column_step(i);
      u32 four = 0;
#pragma unroll
      for (int n = 0; n < 4; ++n)
        if (bits.keeps(row + 8 * (n / 2), key + n % 2)) four |= 1u << n;
      low |= static_cast<u64>(four) << i;
    }
  }
  HEDDLE_DEVICE u32 low_halves(int k, int i) const {
    const int n = 8 * k + 2 * i;
    return (low >> n & 1 ? 0x0000ffffu : 0) | (low >> (n + 1) & 1 ? 0xffff0000u : 0);
  }
};

/// Zeroes the packed weights that are dropped; the factor on the others is the caller's.
template <attention::Dropout kDropout, int kN>
HEDDLE_DEVICE void drop_weights(u32 (&weights)[kN / 16][4], const attention::ForwardParameters& p,
                                const FragmentDropout<kDropout, kN>& dropout) {
  if constexpr (kDropout != attention::Dropout::none) {
#pragma unroll
    for (int k = 0; k < kN / 16; ++k)
#pragma unroll
      for (int i = 0; i < 4; ++i)
        weights[k][i] = attention::keep_halves(p, weights[k][i], dropout.low_halves(k, i));
  }
}

/// The same before they are packed.
template <attention::Dropout kDropout, int kN>
HEDDLE_DEVICE void drop_weights(float (&s)[kN / 2], const attention::ForwardParameters& p,
                                const FragmentDropout<kDropout, kN>& dropout) {
  if constexpr (kDropout != attention::Dropout::none) {
#pragma unroll
    for (int i = 0; i < kN / 2; ++i) {
      const u32 kept = attention::kept_halves(p, dropout.low_halves(i / 8, i % 8 / 2));
      s[i] = (i % 2 == 0 ? kept & 0xffff : kept >> 16) != 0 ? s[i] : 0.0f;
    }
  }
}

}  // namespace heddle::sm90
