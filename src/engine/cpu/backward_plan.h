#pragma once

#include <memory>

#include "engine/engine.h"

namespace heddle::engine::cpu {

Result<std::shared_ptr<const Plan>> plan_backward(const problem::AttentionBackwardProblem& problem,
                                                  const problem::AllowedPaths& allowed);

}  // namespace heddle::engine::cpu
