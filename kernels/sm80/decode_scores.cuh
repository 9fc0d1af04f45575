// From dot products to scores of the decode kernel, in the fragments that tensor cores leave.
#pragma once

#include "decode_share.cuh"
#include "scores.cuh"

namespace heddle::sm80 {

/// Dot products of two rows, of token and head of the group together, with the keys from `first`
/// on become their scores; hidden ones -inf.
template <class Score, int kCount, bool kLengths>
HEDDLE_DEVICE void score_cells(float (&cells)[kCount], const float (&scales)[2],
                               const KeyInterval (&visible)[2], const int (&rows)[2],
                               const DecodeSequence<kLengths>& sequence, int group,
                               const attention::Tensor* loads, int first) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    const int half = tile::fragment_half(i);
    const int column = first + tile::fragment_column(threadIdx.x) + tile::fragment_column_step(i);
    const bool seen = column >= visible[half].lo && column < visible[half].hi;
    float score = __fmul_rn(cells[i], scales[half]);  // not to be fused: as in the backward
    if constexpr (!Score::kIdentity) {
      // A hidden cell's operands may not exist: it is not evaluated.
      score = seen ? Score::value(Cell{score, rows[half] / group, column, sequence.batch,
                                       sequence.head * group + rows[half] % group,
                                       sequence.keys.q_length, sequence.keys.kv_length, loads})
                   : 0.0f;
    }
    cells[i] = seen ? score : attention::minus_infinity();
  }
}

}  // namespace heddle::sm80
