// Plans of RMSNorm and LayerNorm, forward and backward.
#pragma once

#include <memory>

#include "engine/engine.h"
#include "problem/streaming.h"

namespace heddle::engine::cpu {

Result<std::shared_ptr<const Plan>> plan_norm(const problem::NormProblem& problem);
Result<std::shared_ptr<const Plan>> plan_norm_backward(const problem::NormBackwardProblem& problem);

}  // namespace heddle::engine::cpu
