// RMSNorm standing alone, forward.
#pragma once

#include "engine/cuda/lowering.h"
#include "engine/cuda/norm_shape.h"
#include "problem/streaming.h"
#include "streaming/config.h"

namespace heddle::engine::cuda {

struct RmsNormConfig : streaming::RmsNormConfig {
  bool in_registers = true;  ///< a row stays there; else a block walks over it twice
  int threads() const { return threads_per_row > 128 ? threads_per_row : 128; }
};

/// Fills `shape` in and chooses a kernel, or says why there is none.
Result<RmsNormConfig> configure_rms_norm(const problem::NormProblem& problem, NormShape& shape);

Result<Lowering> lower_rms_norm(const problem::NormProblem& problem, const Target& target);

}  // namespace heddle::engine::cuda
