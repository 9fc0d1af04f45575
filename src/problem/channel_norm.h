// LayerNorm of channels: what is normalised together is an entry's channel, or all entries' of one.
#pragma once

#include "problem/operand.h"

namespace heddle::problem {

/// y = (x - mean) * inv_rms * weight (+ bias), inv_rms = 1 / sqrt(variance + epsilon), over the
/// trailing columns. Rows are the dims before those, channels the last of them: weight and bias
/// have the channels' dim, and 1 where rows share them. Accumulates in f32 (f64 if any operand is
/// f64).
struct ChannelNormStructure : OperandTypes {
  bool of_batch = false;  ///< all entries' channels are rows together: for sentences
  OperandId x = kAbsent, weight = kAbsent, bias = kAbsent, y = kAbsent;
  OperandId mean = kAbsent, inv_rms = kAbsent;  ///< one per row; written if present
  /// One per row, all or none: next = (1 - momentum) running + momentum times the row's mean, and
  /// its variance times columns / (columns - 1).
  OperandId running_mean = kAbsent, running_var = kAbsent;
  OperandId next_mean = kAbsent, next_var = kAbsent;
  OperandId momentum = kAbsent;  ///< one-element operand; absent: ChannelNormSizes::momentum
  OperandId epsilon = kAbsent;   ///< one-element operand; absent: ChannelNormSizes::epsilon
  int32_t normalised_dims = 1;   ///< how many trailing dims of x are normalised together

  friend bool operator==(const ChannelNormStructure&, const ChannelNormStructure&) = default;
};

struct ChannelNormSizes : OperandLayouts {
  double epsilon = 1e-5, momentum = 0.1;

  friend bool operator==(const ChannelNormSizes&, const ChannelNormSizes&) = default;
};

struct ChannelNormProblem {
  ChannelNormStructure structure;
  ChannelNormSizes sizes;
};

/// dx = inv_rms * weight * (dy - mean(dy) - xhat * mean(dy * xhat)), xhat = (x - mean) * inv_rms;
/// d_weight = sum of dy * xhat, d_bias = sum of dy, over columns and the rows that share them.
/// Deterministic: the same inputs give the same bits.
struct ChannelNormBackwardStructure : OperandTypes {
  bool of_batch = false;
  OperandId dy = kAbsent, x = kAbsent, weight = kAbsent, mean = kAbsent, inv_rms = kAbsent;
  OperandId dx = kAbsent, d_weight = kAbsent, d_bias = kAbsent;  ///< each written if present
  int32_t normalised_dims = 1;

  friend bool operator==(const ChannelNormBackwardStructure&,
                         const ChannelNormBackwardStructure&) = default;
};

struct ChannelNormBackwardProblem {
  ChannelNormBackwardStructure structure;
  OperandLayouts sizes;
};

/// The op that it is, or whose backward, in sentences.
inline const char* norm_name(const ChannelNormStructure& structure) {
  return structure.of_batch ? "batch_norm" : "instance_norm";
}
inline const char* norm_name(const ChannelNormBackwardStructure& structure) {
  return structure.of_batch ? "batch_norm" : "instance_norm";
}

}  // namespace heddle::problem
