// From dot products to scores of the decode kernel, in the fragments that tensor cores leave.
#pragma once

#include "decode_share.cuh"
#include "scores.cuh"

namespace heddle::sm80 {

/// Where a lane's cells lie: of row `half` of its two, the key of cell i.
template <bool kTurned>
struct DecodeCells {
  using Lanes = tile::LanesOfQuad;
  HEDDLE_DEVICE static int row(int lane, int half) { return lane / 4 + 8 * half; }
  HEDDLE_DEVICE static int key(int lane, int i) {
    return tile::fragment_column(lane) + tile::fragment_column_step(i);
  }
  HEDDLE_DEVICE static bool is_first_of_row(int lane) { return lane % 4 == 0; }
};
/// Of products whose columns are the rows of queries, sums 1 and 2 of each four having changed
/// places.
template <>
struct DecodeCells<true> {
  using Lanes = tile::LanesAcrossQuads;
  HEDDLE_DEVICE static int row(int lane, int half) { return 2 * (lane % 4) + half; }
  HEDDLE_DEVICE static int key(int lane, int i) { return lane / 4 + 16 * (i / 4) + 8 * (i % 2); }
  HEDDLE_DEVICE static bool is_first_of_row(int lane) { return lane < 4; }
};

/// Dot products of two rows, of token and head of the group together, with kKeys keys from `first`
/// on become their scores; hidden ones -inf. to_all: what all rows see; a step of nothing else
/// takes no masks.
template <class Score, class Cells, int kKeys, int kCount>
HEDDLE_DEVICE void score_cells(float (&cells)[kCount], const float (&scales)[2],
                               const KeyInterval (&visible)[2], const KeyInterval& to_all,
                               const int (&rows)[2], const DecodeSequence& sequence, int group,
                               const attention::Tensor* loads, int first) {
  const auto column = [&](int i) { return first + Cells::key(threadIdx.x % 32, i); };
  const auto is_seen = [&](int i) {
    const KeyInterval& seen = visible[tile::fragment_half(i)];
    return column(i) >= seen.lo && column(i) < seen.hi;
  };
#pragma unroll
  for (int i = 0; i < kCount; ++i)  // not to be fused: as in the backward
    cells[i] = __fmul_rn(cells[i], scales[tile::fragment_half(i)]);
  if constexpr (!Score::kIdentity) {
    // A hidden cell's operands may not exist: it is not evaluated.
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const int row = rows[tile::fragment_half(i)];
      if (is_seen(i))
        cells[i] = Score::value(Cell{cells[i], row / group, column(i), sequence.batch,
                                     sequence.head * group + row % group, sequence.keys.q_length,
                                     sequence.keys.kv_length, loads});
    }
  } else if (first >= to_all.lo && first + kKeys <= to_all.hi) {
    return;
  }
#pragma unroll
  for (int i = 0; i < kCount; ++i)
    if (!is_seen(i)) cells[i] = attention::minus_infinity();
}

}  // namespace heddle::sm80
