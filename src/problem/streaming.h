// Problems that read and write each element once: RMSNorm and RoPE standing alone.
#pragma once

#include <optional>
#include <vector>

#include "problem/attention.h"
#include "problem/operand.h"

namespace heddle::problem {

/// y = x * inv_rms * weight (+ bias), inv_rms = 1 / sqrt(mean(x^2) + epsilon), over the trailing
/// columns. Rows are every dim before the normalised ones; x and y may have any strides over the
/// row dims and must be dense along a row. Accumulates in f32 (f64 if x is f64).
struct NormProblem {
  std::vector<OperandType> operands;
  std::vector<OperandLayout> layouts;
  OperandId x = kAbsent, weight = kAbsent, bias = kAbsent, y = kAbsent;
  OperandId inv_rms = kAbsent;  ///< f32 (f64 if x is f64), one per row; written if present
  OperandId epsilon = kAbsent;  ///< one-element operand; absent: epsilon_value
  double epsilon_value = 1e-5;
  int32_t normalised_dims = 1;  ///< how many trailing dims of x are normalised together
};

/// dx = inv_rms * (dy*w - xhat * mean(dy*w*xhat)), d_weight = sum over rows of dy*xhat, d_bias =
/// sum dy. Deterministic: the same inputs give the same bits.
struct NormBackwardProblem {
  std::vector<OperandType> operands;
  std::vector<OperandLayout> layouts;
  OperandId dy = kAbsent, x = kAbsent, weight = kAbsent, inv_rms = kAbsent;
  OperandId dx = kAbsent, d_weight = kAbsent, d_bias = kAbsent;  ///< each written if present
  int32_t normalised_dims = 1;
};

/// y = rope(x), or with `inverse` dx = rope_backward(dy): the angle's sign turned, the scale kept.
/// Without tables and with a rope_dim of 0 it is a copy, which no graph asks for; engines do that
/// change a tensor's type.
struct RopeProblem {
  std::vector<OperandType> operands;
  std::vector<OperandLayout> layouts;
  OperandId x = kAbsent, y = kAbsent;
  Rope rope;  ///< `rotated` unused
  double scale = 1;
  bool inverse = false;
  /// Rows at or past the length of a batch entry are left alone: i32/i64 [B,1,1,1], or prefix sums
  /// [B+1,1,1,1]. No graph says so; engines do that rotate beside an attention.
  OperandId lengths = kAbsent;
  bool lengths_cumulative = false;
};

}  // namespace heddle::problem
