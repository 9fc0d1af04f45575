// RoPE standing alone, forward and backward.
#pragma once

#include <string>

#include "engine/cuda/driver.h"
#include "engine/cuda/kernel_units.h"
#include "engine/cuda/queue.h"
#include "problem/streaming.h"

namespace heddle::engine::cuda {

struct RopeConfig {
  int pairs = 1;         ///< of a thread
  bool aligned = false;  ///< whether runs of elements lie on their size
  bool wide = false;     ///< f64
  bool ragged = false;
};

/// Chooses the kernel, or says why there is none.
Result<RopeConfig> configure_rope(const problem::RopeProblem& problem);

KernelUnit rope_unit(const problem::RopeProblem& problem, const RopeConfig& config);

Result<std::shared_ptr<const QueuedPlan>> plan_rope(const Driver& driver, const Device& device,
                                                    const problem::RopeProblem& problem);

}  // namespace heddle::engine::cuda
