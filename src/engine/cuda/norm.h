// RMSNorm and LayerNorm standing alone, forward.
#pragma once

#include "engine/cuda/lowering.h"
#include "engine/cuda/norm_shape.h"
#include "problem/streaming.h"
#include "streaming/config.h"

namespace heddle::engine::cuda {

struct NormConfig : streaming::NormConfig {
  bool in_registers = true;  ///< a row stays there; else a block walks over it two or three times
  int threads() const { return threads_per_row > 128 ? threads_per_row : 128; }
};

/// Fills `shape` in and chooses a kernel, or says why there is none.
Result<NormConfig> configure_norm(const problem::NormProblem& problem, NormShape& shape);

Result<Lowering> lower_norm(const problem::NormProblem& problem, const Target& target);

}  // namespace heddle::engine::cuda
