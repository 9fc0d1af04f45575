#pragma once

#include "engine/cpu/kernels/real.h"

namespace heddle::engine::cpu::HEDDLE_CPU_LEVEL {

void dropout_dump(const AttentionArguments& a, int64_t b, int64_t h, int64_t first, int64_t last,
                  void* scratch);

}  // namespace heddle::engine::cpu::HEDDLE_CPU_LEVEL
