// How a problem becomes source of the general kernels under kernels/sm80.
#pragma once

#include <string>

#include "problem/attention.h"
#include "sm80/general_config.h"

namespace heddle::engine::cuda {

/// Shared memory every sm_80-class device gives a block (sm_86's share, the smallest).
inline constexpr int kSm80SharedLimit = 99 * 1024;

/// What the problem has; the tiles are left at their defaults.
sm80::GeneralConfig general_config(const problem::AttentionStructure& structure);

/// `extern "C" __global__ void __launch_bounds__(...)` of a kernel.
std::string kernel_source(const problem::AttentionStructure& structure, int threads);

/// The statement by which a kernel of f32 leaves where the Hopper kernel computes; `forward` is the
/// expression of the forward parameters.
std::string leave_source(const problem::AttentionStructure& structure, const char* forward);

}  // namespace heddle::engine::cuda
