// Instance norm and batch norm, forward and backward.
#pragma once

#include "engine/cuda/lowering.h"
#include "problem/channel_norm.h"

namespace heddle::engine::cuda {

Result<Lowering> lower_channel_norm(const problem::ChannelNormProblem& problem,
                                    const Target& target);
Result<Lowering> lower_channel_norm_backward(const problem::ChannelNormBackwardProblem& problem,
                                             const Target& target);

}  // namespace heddle::engine::cuda
