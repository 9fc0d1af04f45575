// What the engine compiles for a problem, without a device: for filling the kernel cache ahead of
// the first use.
#pragma once

#include <string>
#include <vector>

#include "core/status.h"
#include "engine/cuda/kernel_unit.h"
#include "problem/problem.h"

namespace heddle::engine::cuda {

/// Whether devices exist that run code of this name: sm_80 and later; 9.0 is sm_90a.
Status check_architecture(const std::string& architecture);

/// The units the engine's plan of `problem` compiles on a device of `architecture`, or why it has
/// no plan.
Result<std::vector<KernelUnit>> kernel_units(const problem::Problem& problem,
                                             const std::string& architecture);

/// The units of common attentions: bf16 and f16, head dims 64, 128 and 256, full and causal, short
/// and long, forward and backward. Each once.
std::vector<KernelUnit> common_kernel_units(const std::string& architecture);

}  // namespace heddle::engine::cuda
