// Attention on fp8 operands and its backward: in f32, what is held in fp8 on the way rounded to it.
#pragma once

#include <memory>

#include "engine/engine.h"

namespace heddle::engine::cpu {

Result<std::shared_ptr<const Plan>> plan_fp8_forward(const problem::Fp8AttentionProblem& problem);
Result<std::shared_ptr<const Plan>> plan_fp8_backward(
    const problem::Fp8AttentionBackwardProblem& problem);

}  // namespace heddle::engine::cpu
