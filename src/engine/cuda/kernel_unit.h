// A kernel as it is compiled and cached: a translation unit of its own.
#pragma once

#include <string>

namespace heddle::engine::cuda {

/// What a kernel is compiled for, in words.
struct UnitSummary {
  std::string dtype;     ///< "bf16": of Q, K and V, or of x
  std::string head_dim;  ///< "128", "192/128" of q and k beside v; empty where no code knows it
  std::string features;  ///< "causal, dropout philox"; what sizes and addresses say is not in it

  friend bool operator==(const UnitSummary&, const UnitSummary&) = default;
};

/// One translation unit, as compiled_kernel takes it. `name` is its kernel's, or what the names of
/// its kernels begin with.
struct KernelUnit {
  std::string name, source;
  UnitSummary made_for;  ///< empty of what serves all problems

  friend bool operator==(const KernelUnit&, const KernelUnit&) = default;
};

}  // namespace heddle::engine::cuda
