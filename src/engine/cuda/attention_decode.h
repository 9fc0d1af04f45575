// The decode kernel, kernels/sm80/attention_decode.cuh: few rows of 16-bit queries against many
// keys, on every device from sm_80 on.
#pragma once

#include "engine/cuda/lowering.h"
#include "problem/attention.h"
#include "sm80/decode_config.h"

namespace heddle::engine::cuda {

/// The configuration, or which limit of the kernel the problem breaks.
Result<sm80::DecodeConfig> configure_decode(const problem::AttentionProblem& problem,
                                            const Target& target);

Result<Lowering> lower_decode(const problem::AttentionProblem& problem, const Target& target);

}  // namespace heddle::engine::cuda
