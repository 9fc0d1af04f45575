// The element-wise part of the general backward: weights from the statistics the forward left, and
// the gradients of one cell.
#pragma once

#include "../attention/row_statistics.cuh"
#include "scores.cuh"

namespace heddle::sm80 {

using attention::BackwardParameters;
using attention::RowDelta;
using attention::RowStatistic;

/// One batch entry and query head, and how to recompute its weights.
template <class Config, class Score, class Derivative>
struct CellGradient {
  const BackwardParameters& p;
  const int batch, head, q_length, kv_length;
  const float scale, keep_scale;
  const float factor;  ///< on the derivative: the scale for dL/d(dot), 1 for what the score loads
  const attention::DropoutBits<Config::kDropout> dropout;

  HEDDLE_DEVICE CellGradient(const BackwardParameters& parameters, int batch, int head,
                             int q_length, int kv_length, bool of_dot = true)
      : p(parameters),
        batch(batch),
        head(head),
        q_length(q_length),
        kv_length(kv_length),
        scale(p.forward.scale_operand ? *p.forward.scale_operand : p.forward.scale),
        keep_scale(p.forward.keep_scale_operand ? *p.forward.keep_scale_operand
                                                : p.forward.keep_scale),
        factor(of_dot ? scale : 1.0f),
        dropout(p.forward, batch, head) {}

  /// Factor on the weight of (row, column): 0 or keep_scale, or the mask's own value times it.
  HEDDLE_DEVICE float keep(int row, int column) const {
    if constexpr (Config::kDropout == Dropout::none) {
      return 1.0f;
    } else if constexpr (Config::kDropout == Dropout::mask) {
      return keep_scale * attention::load<typename Config::MaskElement>(p.forward.dropout_mask,
                                                                        batch, head, row, column);
    } else {
      return dropout.keeps(row, column) ? keep_scale : 0.0f;
    }
  }

  /// From the raw dot and dO.v of a cell to its dropped-out weight and dL/d(dot); both 0 if hidden.
  HEDDLE_DEVICE void cell(bool seen, int row, int column, RowStatistic statistic, RowDelta delta,
                          float& dot_to_weight, float& d_weight_to_d_dot) const {
    if (!seen) {
      dot_to_weight = d_weight_to_d_dot = 0.0f;
      return;
    }
    GradientCell at;
    at.dot = __fmul_rn(dot_to_weight, scale);  // rounded as by the forward
    at.row = row;
    at.column = column;
    at.batch = batch;
    at.head = head;
    at.q_length = q_length;
    at.kv_length = kv_length;
    at.loads = p.forward.loads;
    const float score = Score::value(at);
    const float weight = weight_of(score - statistic.reference, statistic.log2_sum);
    const float kept = keep(row, column);
    at.gradient = weight * (d_weight_to_d_dot * kept - delta.high - delta.rest) *
                  (Config::kInputIsLog2 ? kLn2 : 1.0f);
    dot_to_weight = weight * kept;
    d_weight_to_d_dot = Derivative::value(at) * factor;
  }

 private:
  HEDDLE_DEVICE static float weight_of(float apart, float log2_sum) {
    constexpr float kToLog2 = Config::kInputIsLog2 ? 1.0f : kLog2E;
    if constexpr (!Config::kMaxAndSum) return ptx::exp2(apart * kToLog2);
    // Of dot products alone, and of maxima in other units, the reference is a maximum but for its
    // rounding.
    constexpr bool kMost = !Score::kIdentity && !Config::kInputIsLog2;
    return ptx::exp2(attention::weight_exponent<kMost>(apart, kToLog2, -log2_sum));
  }
};

/// What a row's weights are recomputed from, for scores in log2 units or natural ones. A
/// log-sum-exp is a reference with the sum in it, in the units of scores: in others it would be
/// rounded once more, which for large ones errs more than all else. Rows that saw nothing get +inf,
/// so that their weights are 0, and so do lost ones of a Score that is not kPlain.
template <bool kMaxAndSum, bool kExact, bool kLog2, bool kPlain>
HEDDLE_DEVICE RowStatistic row_statistic(const BackwardParameters& p, int batch, int head,
                                         int row) {
  const auto load = [&](const attention::Tensor& of) {
    return *attention::element_pointer<const float>(of, batch, head, row, 0);
  };
  if constexpr (kMaxAndSum) {
    return attention::row_statistic<kExact, kLog2>(load(p.forward.max), load(p.forward.sum_exp));
  } else {
    const float stats = load(p.forward.stats);
    if (stats == kMinusInfinity) return {-kMinusInfinity, 0.0f};
    if (!kPlain && attention::weights_are_lost(p.forward.stats_log2 ? stats * kLn2 : stats))
      return {-kMinusInfinity, 0.0f};
    if (kLog2 == (p.forward.stats_log2 != 0)) return {stats, 0.0f};
    return {stats * (kLog2 ? kLog2E : kLn2), 0.0f};
  }
}

/// Of the scores of a kernel.
template <class Config, class Score>
HEDDLE_DEVICE RowStatistic row_statistic(const BackwardParameters& p, int batch, int head,
                                         int row) {
  return row_statistic<Config::kMaxAndSum, is_same<typename Config::Element, float>,
                       Config::kInputIsLog2, Score::kIdentity>(p, batch, head, row);
}

HEDDLE_DEVICE RowDelta* delta_of(const BackwardParameters& p, int batch, int head) {
  return p.delta + (static_cast<i64>(batch) * p.forward.q_heads + head) * p.forward.q_length;
}

}  // namespace heddle::sm80
