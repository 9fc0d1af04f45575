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
    if constexpr (Config::kDropout == Kind::philox) {
      drop_by_philox(weights, rows[0], column0);
      return;
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
      for (int n = 0; n < kTileN / 8; ++n) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const int column = column0 + 8 * n + e;
          float& weight = weights[n][2 * half + e];
          if constexpr (Config::kDropout == Kind::threefry)
            weight = bits.keeps(rows[half], column) ? weight : 0.0f;
          else
            weight *= seen.sees(half, column) ? mask(rows[half], column) : 0.0f;
        }
      }
    }
  }

 private:
  /// Of 16 columns and two rows, 8 apart, at a time.
  HEDDLE_DEVICE void drop_by_philox(float (&weights)[kTileN / 8][4], int row, int column0) const {
#pragma unroll
    for (int n = 0; n < kTileN / 8; n += 2) {
      const attention::Words4 words = bits.words(row, column0 + 8 * n);
#pragma unroll
      for (int word = 0; word < 4; ++word) {
        const u32 kept = attention::kept_halves(p, bits.low_halves(words.word[word]));
        float(&pair)[4] = weights[n + word / 2];
#pragma unroll
        for (int e = 0; e < 2; ++e)
          pair[2 * (word % 2) + e] =
              (kept >> 16 * e & 0xffff) != 0 ? pair[2 * (word % 2) + e] : 0.0f;
      }
    }
  }
  HEDDLE_DEVICE float mask(int row, int column) const {
    return attention::load<typename Config::MaskElement>(p.dropout_mask, batch, head, row, column);
  }
};

}  // namespace heddle::sm80
