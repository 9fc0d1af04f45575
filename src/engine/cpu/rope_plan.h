// Plan of RoPE standing alone, forward or inverse.
#pragma once

#include <memory>

#include "engine/engine.h"
#include "problem/streaming.h"

namespace heddle::engine::cpu {

Result<std::shared_ptr<const Plan>> plan_rope(const problem::RopeProblem& problem);

}  // namespace heddle::engine::cpu
