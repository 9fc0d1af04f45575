// A kernel as it is compiled and cached: a translation unit of its own.
#pragma once

#include <string>

namespace heddle::engine::cuda {

/// One translation unit, as compiled_kernel takes it. `name` is its kernel's, or what the names of
/// its kernels begin with.
struct KernelUnit {
  std::string name, source;

  friend bool operator==(const KernelUnit&, const KernelUnit&) = default;
};

}  // namespace heddle::engine::cuda
