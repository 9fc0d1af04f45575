// The narrow passage: everything an engine may know about one attention, forward or backward.
//
//   S = score(scale * Q K^T)  on visible keys, else -inf
//   P = softmax(S)            with an optional sink logit per query head in the denominator
//   O = dropout(P) V
//
// Structure is what changes code and keys a compiled kernel; sizes are passed to it. Shapes below:
// B batch, Hq/Hk/Hv heads, Sq/Skv lengths.
#pragma once

#include <algorithm>
#include <optional>
#include <vector>

#include "problem/keys.h"
#include "problem/operand.h"
#include "problem/score.h"

namespace heddle::problem {

/// Rotary embedding of Q or K on the way in, and of its gradient on the way out.
///   y = scale * R(angle) x on rope_dim columns from first_column on, scale * x on the others.
struct Rope {
  enum class Pairing : uint8_t {
    halves,
    interleaved
  };  ///< NeoX: (j, j + rope_dim/2); GPT-J: (2j, 2j+1)
  Pairing pairing = Pairing::halves;
  int32_t rope_dim = 0, first_column = 0;
  /// Angles, f32 [Sf, 1, 1, rope_dim] of which columns 0 .. rope_dim/2-1 are read; or tables of
  /// cosines and sines [Sf, 1, 1, rope_dim/2]. Exactly one form is present.
  OperandId angles = kAbsent;
  OperandId cosines = kAbsent, sines = kAbsent;
  /// Row s uses angle row s + position_offset(b): an i32/i64 operand [B or 1, 1, 1, 1]; or, with
  /// dims [B or 1, 1, S, 1], a position for every row, used as it stands. Absent: row s.
  OperandId positions = kAbsent;
  bool positions_per_row = false;
  /// Where the rotated tensor is written, rounded to its dtype; absent if nobody reads it.
  OperandId rotated = kAbsent;

  friend bool operator==(const Rope&, const Rope&) = default;
};

struct Dropout {
  enum class Kind : uint8_t { none, philox, threefry, mask };
  Kind kind = Kind::none;
  /// philox: seed and offset, i32/i64 [1,1,1,1]. threefry: seed is u32 [2] (the key), offset
  /// absent.
  OperandId seed = kAbsent, offset = kAbsent;
  /// philox: the stream of each head, i32 [B,Hq,1,1]; absent means b * Hq + h.
  OperandId streams = kAbsent;
  /// mask: the keep mask (io dtype or boolean, broadcast like a bias), multiplied into P.
  OperandId mask = kAbsent;
  /// mask: factor on P, f32 [1,1,1,1]; absent means 1 / (1 - probability).
  OperandId mask_scale = kAbsent;
  /// Where the exact 0/1 keep mask is written, f32 [B,Hq,Sq,Skv]; philox and threefry only.
  OperandId dump = kAbsent;

  friend bool operator==(const Dropout&, const Dropout&) = default;
};

struct AttentionStructure : OperandTypes {
  OperandId q = kAbsent, k = kAbsent, v = kAbsent, o = kAbsent;
  /// f32 [B,Hq,Sq,1] each, written if present; max and sum include the sink. Natural log unless
  /// stats_log2; max and sum_exp are always natural.
  OperandId stats = kAbsent, max = kAbsent, sum_exp = kAbsent;
  bool stats_log2 = false;
  /// [B,Hq,Sq,Skv] of any float type, written if present: natural scores, 0 in place of -inf, or
  /// their probabilities, before dropout.
  OperandId scores = kAbsent;
  bool scores_after_softmax = false;

  int32_t qk_head_dim = 0, v_head_dim = 0;

  /// The scale as a one-element f32 operand; absent: AttentionSizes::scale.
  OperandId scale = kAbsent;
  /// The scaled dot is already in log2 units: P = exp2(S - max), and the backward's dS carries
  /// ln 2.
  bool softmax_input_is_log2 = false;
  ScoreExpression score;
  std::vector<KeyBound> bounds;  ///< constants in AttentionSizes::bound_constants, same order
  /// u8 [B or 1, Hq or 1, ceil(Sq/128), ceil(ceil(Skv/128)/8)]: bit j of byte i computes key tile
  /// 8i+j.
  OperandId block_mask = kAbsent;
  /// Actual lengths per batch entry: i32/i64 [B,1,1,1], or prefix sums [B+1,1,1,1] if cumulative.
  /// Rows at or past q_length are written as O = 0, stats = -inf (dense) or left alone (ragged).
  OperandId q_lengths = kAbsent, kv_lengths = kAbsent;
  bool q_lengths_cumulative = false, kv_lengths_cumulative = false;
  /// [1, Hq or 1, 1, 1] of f32, bf16 or f16: one more logit in each row's denominator, without a
  /// value.
  OperandId sink = kAbsent;
  Dropout dropout;
  std::optional<Rope> q_rope, k_rope;

  friend bool operator==(const AttentionStructure&, const AttentionStructure&) = default;
};

struct AttentionSizes : OperandLayouts {
  int64_t batch = 0, q_heads = 0, k_heads = 0, v_heads = 0, q_length = 0, kv_length = 0;
  /// Lengths of the plan whose kernels run the problem, where they are more than its own
  /// (late_sizes.h). Kernels are chosen by these, so that shorter sequences have the same ones.
  int64_t planned_q_length = 0, planned_kv_length = 0;
  int64_t q_length_to_plan_for() const { return std::max(q_length, planned_q_length); }
  int64_t kv_length_to_plan_for() const { return std::max(kv_length, planned_kv_length); }
  double scale = 1;
  std::vector<int64_t> bound_constants;
  double dropout_probability = 0;
  /// Of what philox and threefry keep, if it is not 1 / (1 - dropout_probability).
  std::optional<double> dropout_factor;
  double kept_factor() const { return dropout_factor.value_or(1 / (1 - dropout_probability)); }
  /// Threefry: element (b,h,i,j) has linear index b*s[0] + h*s[1] + i*s[2] + j*s[3] in the
  /// program's own mask.
  Dims threefry_strides;
  double q_rope_scale = 1, k_rope_scale = 1;

  friend bool operator==(const AttentionSizes&, const AttentionSizes&) = default;
};

struct AttentionProblem {
  AttentionStructure structure;
  AttentionSizes sizes;

  friend bool operator==(const AttentionProblem&, const AttentionProblem&) = default;
};

/// The backward pass of `forward` (whose o and row statistics are inputs here: stats, or in its
/// absence max and sum_exp; its q_rope/k_rope rotate the given Q and K on the way in, if they were
/// not saved rotated).
///   P = exp(S - stats)  or  exp(S - max) / sum_exp, which holds however large S is: an f32 beside
///   a huge max has no place for log(sum_exp)
struct AttentionBackwardStructure {
  AttentionStructure forward;  ///< its operand list holds the operands below too

  OperandId d_o = kAbsent;
  /// f32 [B,Hq,Sq,1]: dL/d(log-sum-exp), natural and with the sink, however the rows' statistics
  /// are given. As d(log-sum-exp)/dS = P, dS = P * (dP - (rowsum(dO * O) - d_stats)).
  OperandId d_stats = kAbsent;
  OperandId d_q = kAbsent, d_k = kAbsent, d_v = kAbsent;  ///< each written if present
  /// f32 [1,1,1,1], raised from what it holds to the largest |dL/d(Q K^T)|, beside dK. No graph
  /// asks for it: attention on fp8 operands, in wider types, does.
  OperandId largest_d_dot = kAbsent;
  OperandId d_sink = kAbsent;                ///< f32 [1,Hq,1,1]
  std::vector<LoadGradient> load_gradients;  ///< dBias and its kind
  /// dL/d(scaled dot) of a cell from `gradient` and the forward's leaves; the chain rule through
  /// score.
  ScoreExpression d_dot{{ScoreNode{ScoreOp::gradient}}, 0};
  /// Inverse rotation of dQ and dK before they are written (rope_backward, same scale as the rope);
  /// Rope::rotated then names where the gradient before rotation is written, if anyone reads it.
  std::optional<Rope> d_q_rope, d_k_rope;
  bool deterministic = false;
  /// The statistics are of these keys and no others: rowsum(dS) = P_sink * D + d_stats, where D =
  /// rowsum(dO * O) - d_stats.
  bool whole_rows = false;

  friend bool operator==(const AttentionBackwardStructure&,
                         const AttentionBackwardStructure&) = default;
};

struct AttentionBackwardProblem {
  AttentionBackwardStructure structure;
  AttentionSizes sizes;
  double d_q_rope_scale = 1, d_k_rope_scale = 1;

  friend bool operator==(const AttentionBackwardProblem&,
                         const AttentionBackwardProblem&) = default;
};

}  // namespace heddle::problem
