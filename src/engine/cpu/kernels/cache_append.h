// New rows for caches of K and V, and rotated queries.
#pragma once

#include "engine/cpu/kernels.h"

namespace heddle::engine::cpu::HEDDLE_CPU_LEVEL {

void append_row(const CacheAppendPass& pass, int64_t b, int64_t s, int64_t first, int64_t last,
                float* scratch);

}  // namespace heddle::engine::cpu::HEDDLE_CPU_LEVEL
