// Attention of 16-bit q, k and v among whose other tensors some are f32 (O, dO, dQ, dK, dV), as
// stages: its inputs widened, attention in f32, which is as exact as they are, and what it writes
// rounded to the type asked for.
#pragma once

#include <optional>

#include "engine/cuda/sequence.h"

namespace heddle::engine::cuda {

/// None of a problem whose tensors are all of one type.
std::optional<Stages> f32_stages(const problem::AttentionProblem& problem);
std::optional<Stages> f32_stages(const problem::AttentionBackwardProblem& problem);

}  // namespace heddle::engine::cuda
