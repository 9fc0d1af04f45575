// A backward that wants gradients of what the score reads (dBias) beside others, on Hopper: where
// its kernels do not give them, they compute dQ, dK, dV and dSink, and the general ones the rest.
#pragma once

#include "engine/cuda/stages.h"

namespace heddle::engine::cuda {

/// Whether the problem is cut so: Hopper's kernels take it but for the gradients of loads.
bool has_hopper_stage(const problem::AttentionBackwardProblem& problem);

Stages load_gradient_stages(const problem::AttentionBackwardProblem& problem);

}  // namespace heddle::engine::cuda
