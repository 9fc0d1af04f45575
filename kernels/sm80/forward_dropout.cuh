// Dropout of a warp's weights, 16 rows by a tile of keys.
#pragma once

#include "../attention/dropout.cuh"
#include "seen_keys.cuh"

namespace heddle::sm80 {

/// The factor on what is kept.
template <attention::Dropout kKind>
HEDDLE_DEVICE float kept_weight_factor(const attention::ForwardParameters& p) {
  if constexpr (kKind == attention::Dropout::none) return 1.0f;
  if constexpr (kKind == attention::Dropout::mask)
    if (p.keep_scale_operand) return *p.keep_scale_operand;
  return p.keep_scale;
}

template <class Config, int kTileN>
struct ForwardDropout {
  using Kind = attention::Dropout;
  const attention::ForwardParameters& p;
  int batch, head;
  attention::DropoutBits<Config::kDropout> bits;

  HEDDLE_DEVICE ForwardDropout(const attention::ForwardParameters& parameters, int batch, int head)
      : p(parameters), batch(batch), head(head), bits(parameters, batch, head) {}

  /// Weights of the two `rows`, columns from `column0` on: dropped ones become 0, by a mask in
  /// memory they are multiplied.
  template <class Seen>
  HEDDLE_DEVICE void drop(float (&weights)[kTileN / 8][4], const int (&rows)[2], int column0,
                          const Seen& seen) const {
    if constexpr (Config::kDropout == Kind::none) return;
    attention::Words4 words;  // of Philox, for 16 columns
#pragma unroll
    for (int n = 0; n < kTileN / 8; ++n) {
      const int column = column0 + 8 * n;
      if constexpr (Config::kDropout == Kind::philox) {
        if (n % 2 == 0) words = bits.words(rows[0], column);
      }
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        u32 kept = 0;
        if constexpr (Config::kDropout == Kind::philox)
          kept = attention::kept_halves(p, bits.low_halves(words.word[half + n % 2 * 2]));
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          float& weight = weights[n][2 * half + e];
          if constexpr (Config::kDropout == Kind::philox)
            weight = (kept >> 16 * e & 0xffff) != 0 ? weight : 0.0f;
          else if constexpr (Config::kDropout == Kind::threefry)
            weight = bits.keeps(rows[half], column + e) ? weight : 0.0f;
          else if constexpr (Config::kDropout == Kind::mask)
            weight *= seen.sees(half, column + e)
                          ? attention::load<typename Config::MaskElement>(
                                p.dropout_mask, batch, head, rows[half], column + e)
                          : 0.0f;
        }
      }
    }
  }
};

}  // namespace heddle::sm80
