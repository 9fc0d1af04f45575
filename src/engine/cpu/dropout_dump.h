#pragma once

#include "engine/cpu/kernels.h"

namespace heddle::engine::cpu {

/// Writes the exact keep mask of every cell, on all workers.
void dump_dropout(const AttentionArguments& a, const Kernels& kernels, int workers, char* scratch,
                  int64_t scratch_bytes);

}  // namespace heddle::engine::cpu
