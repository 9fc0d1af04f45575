// Instance norm and batch norm on the CPU: plain loops in f64, one source for every machine.
#pragma once

#include <memory>

#include "core/status.h"
#include "engine/engine.h"
#include "problem/channel_norm.h"

namespace heddle::engine::cpu {

Result<std::shared_ptr<const Plan>> plan_channel_norm(const problem::ChannelNormProblem& problem);
Result<std::shared_ptr<const Plan>> plan_channel_norm_backward(
    const problem::ChannelNormBackwardProblem& problem);

}  // namespace heddle::engine::cpu
