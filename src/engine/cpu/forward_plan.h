#pragma once

#include <memory>

#include "engine/engine.h"

namespace heddle::engine::cpu {

Result<std::shared_ptr<const Plan>> plan_forward(const problem::AttentionProblem& problem,
                                                 const problem::AllowedPaths& allowed);

}  // namespace heddle::engine::cpu
