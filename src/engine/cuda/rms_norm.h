// RMSNorm standing alone, forward.
#pragma once

#include <string>

#include "engine/cuda/device.h"
#include "engine/cuda/kernel_units.h"
#include "engine/cuda/norm_shape.h"
#include "engine/cuda/queue.h"
#include "problem/streaming.h"

namespace heddle::engine::cuda {

struct RmsNormConfig {
  bool in_registers = true;  ///< a row stays there; else a block walks over it twice
  int threads_per_row = 512, vectors = 1;
  int threads() const { return threads_per_row > 128 ? threads_per_row : 128; }
};

/// Fills `shape` in and chooses a kernel, or says why there is none.
Result<RmsNormConfig> configure_rms_norm(const problem::NormProblem& problem, NormShape& shape);

KernelUnit rms_norm_unit(const problem::NormProblem& problem, const NormShape& shape,
                         const RmsNormConfig& config);

Result<std::shared_ptr<const QueuedPlan>> plan_rms_norm(const Driver& driver, const Device& device,
                                                        const problem::NormProblem& problem);

}  // namespace heddle::engine::cuda
