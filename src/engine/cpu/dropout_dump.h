#pragma once

#include "engine/cpu/kernels.h"
#include "engine/cpu/parallel.h"

namespace heddle::engine::cpu {

/// Writes the exact keep mask of every cell, on all workers.
template <class Real>
void dump_dropout(const AttentionArguments& a, const AttentionKernels<Real>& kernels,
                  const Workers& workers);

}  // namespace heddle::engine::cpu
