// A tensor's rows times a number on the device, as those of another type; and the largest
// magnitude.
#pragma once

#include "engine/cuda/lowering.h"
#include "engine/cuda/rows_step.h"
#include "problem/operand.h"
#include "streaming/config.h"

namespace heddle::engine::cuda {

/// y = scale * factor * x, largest = max |factor * x|: see streaming/scaled_copy.cuh. Numbers are
/// f32 [1,1,1,1]; absent ones are 1. y is x where nothing is written, and the largest alone is
/// wanted.
struct ScaledCopyStep : RowsStep {
  const char* name = "";  ///< of the tensor that the problem has
  problem::OperandId factor = problem::kAbsent, scale = problem::kAbsent;
  problem::OperandId largest = problem::kAbsent;
  bool reciprocal = false;
  problem::OperandTypes types;
  problem::OperandLayouts layouts;
};

Result<Lowering> lower_scaled_copy(const ScaledCopyStep& step, const Target& target);

}  // namespace heddle::engine::cuda
