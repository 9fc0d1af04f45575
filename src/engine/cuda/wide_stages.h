// Attention of 16-bit q, k and v among whose other tensors some are f32 (O, dO, dQ, dK, dV), as
// stages: its inputs widened, attention in f32, which is as exact as they are, and what it writes
// rounded to the type asked for.
#pragma once

#include "engine/cuda/stages.h"

namespace heddle::engine::cuda {

/// Whether the problem is cut so: its tensors are not all of one type.
bool has_wide_stages(const problem::AttentionProblem& problem);
bool has_wide_stages(const problem::AttentionBackwardProblem& problem);

Stages wide_stages(const problem::AttentionProblem& problem);
Stages wide_stages(const problem::AttentionBackwardProblem& problem);

}  // namespace heddle::engine::cuda
