// An attention with rotary embedding as stages without: Q and K are rotated before it, into the
// operand that asks for them or into a temporary; dQ and dK are turned back after it, where they
// lie. Where the forward kernel of the architecture rotates Q itself, that and the rotation of K
// are left to its plan.
#pragma once

#include <string>

#include "engine/cuda/stages.h"

namespace heddle::engine::cuda {

/// Whether the problem is cut so, rather than taken whole by one plan.
bool has_rope_stages(const problem::AttentionProblem& problem, const std::string& architecture);
bool has_rope_stages(const problem::AttentionBackwardProblem& problem);

Stages rope_stages(const problem::AttentionProblem& problem, const std::string& architecture);
Stages rope_stages(const problem::AttentionBackwardProblem& problem);

}  // namespace heddle::engine::cuda
