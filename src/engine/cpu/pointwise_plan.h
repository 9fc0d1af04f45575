// Plans for pointwise ops.
#pragma once

#include <memory>

#include "engine/engine.h"

namespace heddle::engine::cpu {

Result<std::shared_ptr<const Plan>> plan_pointwise(const problem::PointwiseProblem& problem);

}  // namespace heddle::engine::cpu
