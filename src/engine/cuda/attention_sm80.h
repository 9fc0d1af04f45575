// How a problem becomes source of the general kernels under kernels/sm80.
#pragma once

#include <string>

#include "engine/cuda/target.h"
#include "problem/attention.h"
#include "sm80/general_config.h"

namespace heddle::engine::cuda {

/// Shared memory every sm_80-class device gives a block (sm_86's share, the smallest): what kernels
/// of heads up to kWidestHead take. Those of wider ones take what the device gives.
inline constexpr int kSm80SharedLimit = 99 * 1024;
/// Columns whose sums a warp holds for its rows.
inline constexpr int kWidestHead = 256;

/// Shared memory that the general kernels of the head dims may take.
int shared_limit_of(const problem::AttentionStructure& structure, const Target& target);
/// Wide heads' tiles that are larger even so.
Status check_shared_bytes(const problem::AttentionStructure& structure, int bytes,
                          const Target& target);

/// What the problem has; the tiles are left at their defaults.
sm80::GeneralConfig general_config(const problem::AttentionStructure& structure);

/// `extern "C" __global__ void __launch_bounds__(...)` of a kernel.
std::string kernel_source(const problem::AttentionStructure& structure, int threads);

/// The statement by which a kernel of f32 leaves where the Hopper kernel computes; `forward` is the
/// expression of the forward parameters.
std::string leave_source(const problem::AttentionStructure& structure, const char* forward);

}  // namespace heddle::engine::cuda
