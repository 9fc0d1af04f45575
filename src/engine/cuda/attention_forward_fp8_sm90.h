// The Hopper forward of fp8 operands, kernels/sm90/attention_forward_fp8.cuh, and the kernel before
// it that turns values. What it does not take is refused with graph_not_supported.
#pragma once

#include "engine/cuda/lowering.h"

namespace heddle::engine::cuda {

Result<Lowering> lower_forward_fp8_sm90(const problem::Fp8AttentionProblem& problem,
                                        const Target& target);

}  // namespace heddle::engine::cuda
