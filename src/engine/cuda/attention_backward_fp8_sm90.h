// The Hopper backward of fp8 operands, kernels/sm90/attention_backward_fp8.cuh, the kernel before
// it that turns keys, and its passes before and after. What it does not take is refused with
// graph_not_supported.
#pragma once

#include "engine/cuda/lowering.h"

namespace heddle::engine::cuda {

Result<Lowering> lower_backward_fp8_sm90(const problem::Fp8AttentionBackwardProblem& problem,
                                         const Target& target);

}  // namespace heddle::engine::cuda
