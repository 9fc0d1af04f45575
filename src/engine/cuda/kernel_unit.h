// A kernel as it is compiled and cached: a translation unit of its own.
#pragma once

#include <memory>
#include <string>

#include "core/status.h"
#include "engine/cuda/kernel.h"

namespace heddle::engine::cuda {

/// One translation unit, as compiled_kernel takes it. `name` is its kernel's, or what the names of
/// its kernels begin with.
struct KernelUnit {
  std::string name, source;

  friend bool operator==(const KernelUnit&, const KernelUnit&) = default;
};

/// Compiles the unit, unless that was done before, and loads its kernel.
Result<std::shared_ptr<const Kernel>> load_kernel(const Driver& driver, const Device& device,
                                                  const KernelUnit& unit, int64_t shared_bytes);

}  // namespace heddle::engine::cuda
