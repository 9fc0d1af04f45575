// Operands passed by value that kernels read from device memory, as any other of their role: a
// kernel before them writes them into the workspace. What kernels take by value stays where it is.
#pragma once

#include <optional>

#include "engine/cuda/lowering.h"

namespace heddle::engine::cuda {

/// The problem with them in device memory; nothing of a problem that has none.
std::optional<Result<Lowering>> lower_host_values(const Problem& problem, const Target& target);

/// What writes so many.
KernelUnit host_values_unit(size_t count);

}  // namespace heddle::engine::cuda
