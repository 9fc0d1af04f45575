// Dropout of the weights a thread holds of a 64 x N accumulator.
#pragma once

#include "../attention/dropout.cuh"
#include "../tile/fragment.cuh"

namespace heddle::sm90 {

/// Zeroes the weights that dropout drops, of rows `rows` (the thread's two) and keys from
/// `first_key` (the thread's first column); the factor on the others is the caller's.
template <attention::Dropout kDropout, int kCount>
HEDDLE_DEVICE void drop_weights(float (&s)[kCount], const attention::ForwardParameters& p,
                                int batch, int head, const int (&rows)[2], int first_key) {
  const attention::DropoutBits<attention::ForwardParameters> bits(p, kDropout, batch, head);
  if constexpr (kDropout == attention::Dropout::threefry) {
    // A loop that is not unrolled: unrolled, the kernel takes 4 to 5 s to compile instead of 2, and
    // runs 5 to 6 % faster. Its index cannot name a register, so bit i of `kept` is score i.
    static_assert(kCount <= 64);
    u64 kept = 0;
#pragma unroll 1
    for (int i = 0; i < kCount; i += 4) {
      const int key = first_key + tile::fragment_column_step(i);
      bool keep[4];
      bits.template keep_pair<kDropout>(rows[0], key, keep[0], keep[1]);
      bits.template keep_pair<kDropout>(rows[1], key, keep[2], keep[3]);
      const u32 four = u32(keep[0]) | u32(keep[1]) << 1 | u32(keep[2]) << 2 | u32(keep[3]) << 3;
      kept |= static_cast<u64>(four) << i;
    }
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      if (!(kept >> i & 1)) s[i] = 0;
    }
    return;
  }
#pragma unroll
  for (int i = 0; i < kCount; i += 4) {
    const int key = first_key + tile::fragment_column_step(i);
    bool keep[4];
    if constexpr (kDropout == attention::Dropout::philox) {
      // Four neighbours share one evaluation: of two lanes with the same four keys, one draws the
      // words of the upper row, the other those of the lower, and they trade halves.
      const bool odd = threadIdx.x % 2 != 0;
      const attention::Words4 words = attention::philox(
          key / 4, odd ? rows[1] : rows[0], bits.stream, bits.offset_low, bits.k0, bits.k1);
      const u32(&w)[4] = words.word;
      const u32 x = __shfl_xor_sync(0xffffffffu, odd ? w[0] : w[2], 1);
      const u32 y = __shfl_xor_sync(0xffffffffu, odd ? w[1] : w[3], 1);
      keep[0] = (odd ? x : w[0]) >= p.dropout_threshold;
      keep[1] = (odd ? y : w[1]) >= p.dropout_threshold;
      keep[2] = (odd ? w[2] : x) >= p.dropout_threshold;
      keep[3] = (odd ? w[3] : y) >= p.dropout_threshold;
    } else {
      bits.template keep_pair<kDropout>(rows[0], key, keep[0], keep[1]);
      bits.template keep_pair<kDropout>(rows[1], key, keep[2], keep[3]);
    }
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      if (!keep[n]) s[i + n] = 0;
    }
  }
}

}  // namespace heddle::sm90
