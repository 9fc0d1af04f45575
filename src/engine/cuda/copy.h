// A tensor copied to where, and as what, kernels take it: into another type, to dense rows, with
// columns of zeros behind its own; and results back.
#pragma once

#include <string>

#include "engine/cuda/lowering.h"
#include "engine/cuda/rows_step.h"
#include "problem/operand.h"
#include "streaming/config.h"

namespace heddle::engine::cuda {

struct CopyStep : RowsStep {
  const char* name = "";  ///< of the tensor that the problem has
  problem::OperandTypes types;
  problem::OperandLayouts layouts;
};

/// The kernel's configuration, or which limit of it the copy breaks.
Result<streaming::CopyConfig> configure_copy(const CopyStep& step);

/// "k copied to dense rows", "q converted to f32, padded from 36 to 40 columns", "v from codes of
/// i8 to bf16".
std::string words_of(const CopyStep& step);

Result<Lowering> lower_copy(const CopyStep& step, const Target& target);

}  // namespace heddle::engine::cuda
