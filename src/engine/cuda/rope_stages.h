// An attention with rotary embedding as stages without: Q and K are rotated before it, into the
// operand that asks for them or into a temporary; dQ and dK are turned back after it, where they
// lie.
#pragma once

#include "engine/cuda/stages.h"

namespace heddle::engine::cuda {

/// Whether anything is rotated in the problem.
bool has_rope(const problem::AttentionProblem& problem);
bool has_rope(const problem::AttentionBackwardProblem& problem);

Stages rope_stages(const problem::AttentionProblem& problem);
Result<Stages> rope_stages(const problem::AttentionBackwardProblem& problem);

}  // namespace heddle::engine::cuda
