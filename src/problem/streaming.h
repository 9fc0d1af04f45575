// Problems that read and write each element once: norms and RoPE standing alone.
#pragma once

#include <optional>
#include <vector>

#include "problem/attention.h"
#include "problem/operand.h"

namespace heddle::problem {

/// RMSNorm, and LayerNorm, which is that of rows centred first: y = c * inv_rms * weight (+ bias),
/// inv_rms = 1 / sqrt(mean(c^2) + epsilon), over the trailing columns, where c is x, or `centred`
/// x - mean(x); beside a residual x is sum = x + residual + residual_bias. Rows are every dim
/// before the normalised ones; x and y may have any strides over the row dims and must be dense
/// along a row. Accumulates in f32 (f64 if x is f64).
struct NormStructure : OperandTypes {
  bool centred = false;
  OperandId x = kAbsent, weight = kAbsent, bias = kAbsent, y = kAbsent;
  OperandId residual = kAbsent, residual_bias = kAbsent, sum = kAbsent;  ///< none without the first
  /// f32 (f64 if x is f64), one per row; written if present, the mean if centred alone.
  OperandId mean = kAbsent, inv_rms = kAbsent;
  OperandId epsilon = kAbsent;  ///< one-element operand; absent: NormSizes::epsilon
  int32_t normalised_dims = 1;  ///< how many trailing dims of x are normalised together

  friend bool operator==(const NormStructure&, const NormStructure&) = default;
};

struct NormSizes : OperandLayouts {
  double epsilon = 1e-5;

  friend bool operator==(const NormSizes&, const NormSizes&) = default;
};

struct NormProblem {
  NormStructure structure;
  NormSizes sizes;
};

/// dx = inv_rms * (g - xhat * mean(g*xhat) - (centred: mean(g))), g = dy*w, xhat = c * inv_rms;
/// d_weight = sum over rows of dy*xhat, d_bias = sum dy. Deterministic: the same inputs give the
/// same bits.
struct NormBackwardStructure : OperandTypes {
  bool centred = false;
  OperandId dy = kAbsent, x = kAbsent, weight = kAbsent;
  OperandId mean = kAbsent, inv_rms = kAbsent;  ///< the mean if centred, and not else
  OperandId dx = kAbsent, d_weight = kAbsent, d_bias = kAbsent;  ///< each written if present
  int32_t normalised_dims = 1;

  friend bool operator==(const NormBackwardStructure&, const NormBackwardStructure&) = default;
};

struct NormBackwardProblem {
  NormBackwardStructure structure;
  OperandLayouts sizes;
};

/// The op that a norm, or a backward of one, is, in sentences.
template <class Structure>
const char* norm_name(const Structure& structure) {
  return structure.centred ? "layer_norm" : "rms_norm";
}

/// y = rope(x), or with `inverse` dx = rope_backward(dy): the angle's sign turned, the scale kept.
struct RopeStructure : OperandTypes {
  OperandId x = kAbsent, y = kAbsent;
  Rope rope;  ///< `rotated` unused
  bool inverse = false;

  friend bool operator==(const RopeStructure&, const RopeStructure&) = default;
};

struct RopeSizes : OperandLayouts {
  double scale = 1;

  friend bool operator==(const RopeSizes&, const RopeSizes&) = default;
};

struct RopeProblem {
  RopeStructure structure;
  RopeSizes sizes;
};

}  // namespace heddle::problem
