#pragma once

#include "engine/cpu/kernels/real.h"

namespace heddle::engine::cpu::HEDDLE_CPU_LEVEL {

void forward(const ForwardPass& pass, const ForwardTask& task, void* scratch);
void combine(const ForwardPass& pass, int64_t b, int64_t h, int64_t first, int64_t last,
             void* scratch);

}  // namespace heddle::engine::cpu::HEDDLE_CPU_LEVEL
