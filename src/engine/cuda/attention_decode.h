// The decode kernel, kernels/sm80/attention_decode.cuh: few rows of 16-bit queries against many
// keys, on every device from sm_80 on.
#pragma once

#include "engine/cuda/lowering.h"
#include "problem/attention.h"
#include "sm80/decode_config.h"

namespace heddle::engine::cuda {

/// Up to 64 rows of a group's heads together: of more, tensor cores have enough to do with whole
/// tiles. And 256 keys at least: of fewer there is little to share among blocks.
bool has_few_rows_and_many_keys(const problem::AttentionProblem& problem);

/// The configuration, or which limit of the kernel the problem breaks.
Result<sm80::DecodeConfig> configure_decode(const problem::AttentionProblem& problem,
                                            const Target& target);

Result<Lowering> lower_decode(const problem::AttentionProblem& problem, const Target& target);

}  // namespace heddle::engine::cuda
