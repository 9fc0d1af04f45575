// The general attention forward kernel, kernels/sm80/attention_forward.cuh: every feature, on
// every device from sm_80 on.
#pragma once

#include "engine/cuda/lowering.h"
#include "problem/attention.h"

namespace heddle::engine::cuda {

/// What is compiled in, as a pure function of the problem.
struct ForwardSm80Config {
  int warps = 8;        ///< 16 query rows each
  int tile_n = 64;      ///< keys per step
  bool aligned = true;  ///< rows start on 16 bytes: asynchronous 16-byte copies
  int64_t shared_bytes = 0;
};

/// The configuration, or which limit of the kernel the problem breaks.
Result<ForwardSm80Config> configure_forward_sm80(const problem::AttentionProblem& problem);

Result<Lowering> lower_forward_sm80(const problem::AttentionProblem& problem, const Target& target);
/// In f32 beside Hopper's kernels, where these do not compute
/// (attention::ForwardParameters::unfit).
Result<Lowering> lower_forward_sm80_after_pairs(const problem::AttentionProblem& problem,
                                                const Target& target);

}  // namespace heddle::engine::cuda
