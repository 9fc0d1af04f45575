// Numbers passed by value, put where the kernels after this one read them.
#pragma once

#include "../ptx/types.cuh"
#include "arguments.h"

namespace heddle::streaming {

/// A thread a number.
template <int kCapacity>
HEDDLE_DEVICE void write_host_values(const HostValueArguments<kCapacity>& args) {
  const int n = static_cast<int>(threadIdx.x);
  if (n < args.count) args.cells[n].value = args.values[n];
}

}  // namespace heddle::streaming
