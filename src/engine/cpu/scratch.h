// Where a worker's scratch holds what. The layout follows from the pass and an instruction set's
// shape alone, so that any machine can measure the scratch of every instruction set; the kernels
// read their arrays from it. Offsets are bytes, each array on a cache line of its own.
#pragma once

#include "engine/cpu/arguments.h"
#include "engine/cpu/kernel_shape.h"

namespace heddle::engine::cpu {

template <class Real>
struct ForwardPass;
template <class Real>
struct BackwardPass;

/// Columns that rows of scores are apart beside their own: off the power of two, so that rows fall
/// into different cache sets.
inline constexpr int64_t kPitchGap = 16;

/// Workers write to no page of each other's.
inline constexpr int64_t kScratchAlignment = 4096;

struct Interval {
  int64_t lo, hi;
};

/// A query row of a forward tile.
struct Row {
  int64_t i, h;
  Interval visible;
};

/// P = e^(score - shift) * weight, scores in natural units; a shift of -inf: P = 0.
template <class Real>
struct RowStatistics {
  Real shift, weight;
};

/// A score step's value: one number, or a strip indexed like the scores.
template <class Real>
struct ScoreValue {
  const Real* strip;  ///< null: `number` for every key
  Real number;
};

struct ForwardScratch {
  int64_t q_pitch, o_pitch;
  int64_t q, o, o_lost, k, v, s, p, staging, max, sum, sum_lost, factors, rows, score_values,
      score_strips;  ///< o_lost: 0 if there is none
  int64_t code_queries, code_weights, code_rows, code_parts, code_values, code_sums;
  int64_t bytes;
};

struct BackwardScratch {
  int64_t q_pitch, o_pitch, q_columns, o_columns;
  int64_t k_columns, v_columns, k_rows, d_k, d_v, q, d_o, p, d_s;
  int64_t q_rows, d_o_rows, p_rows, d_s_rows, d_s_keys;
  int64_t row_dot, one_key_rest, statistics, visible, factors, dots, staging, spill, sum;
  int64_t score_values, score_strips;
  int64_t bytes;
};

template <class Real>
ForwardScratch forward_scratch(const ForwardPass<Real>& pass, const KernelShape& shape);
template <class Real>
BackwardScratch backward_scratch(const BackwardPass<Real>& pass, const KernelShape& shape,
                                 Products products);

}  // namespace heddle::engine::cpu
