// The kernels most programs need: for filling the kernel cache ahead of the first use.
#pragma once

#include <vector>

#include "engine/cuda/kernel_unit.h"
#include "engine/cuda/target.h"

namespace heddle::engine::cuda {

/// The units of common attentions: bf16 and f16, head dims 64, 128 and 256, full and causal, short
/// and long, forward and backward. Each once.
std::vector<KernelUnit> common_kernel_units(const Target& target);

}  // namespace heddle::engine::cuda
