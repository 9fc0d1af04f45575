// An attention with rotary embedding as stages without: Q and K are rotated before it, into the
// operand that asks for them or into a temporary; dQ and dK are turned back after it, where they
// lie.
#pragma once

#include <optional>

#include "engine/cuda/sequence.h"

namespace heddle::engine::cuda {

/// None of a problem that rotates nothing.
std::optional<Stages> rope_stages(const problem::AttentionProblem& problem);
std::optional<Stages> rope_stages(const problem::AttentionBackwardProblem& problem);

}  // namespace heddle::engine::cuda
