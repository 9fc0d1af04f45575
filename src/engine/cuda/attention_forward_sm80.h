// The general attention forward kernel, kernels/sm80/attention_forward.cuh: every feature, on
// every device from sm_80 on.
#pragma once

#include "engine/cuda/lowering.h"
#include "problem/attention.h"
#include "sm80/general_config.h"

namespace heddle::engine::cuda {

/// The configuration, or which limit of the kernel the problem breaks.
Result<sm80::GeneralConfig> configure_forward_sm80(const problem::AttentionProblem& problem,
                                                   const Target& target);

Result<Lowering> lower_forward_sm80(const problem::AttentionProblem& problem, const Target& target);
/// In f32 beside Hopper's kernels, where these do not compute
/// (attention::ForwardParameters::fallback).
Result<Lowering> lower_forward_sm80_after_pairs(const problem::AttentionProblem& problem,
                                                const Target& target);

}  // namespace heddle::engine::cuda
