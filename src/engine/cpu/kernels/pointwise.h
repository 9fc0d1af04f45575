// Pointwise ops, a strip of a row at a time: every op is one pass over the strip.
#pragma once

#include "engine/cpu/kernels.h"
#include "engine/cpu/kernels/memory.h"

namespace heddle::engine::cpu::HEDDLE_CPU_LEVEL {

void pointwise_strip(const PointwisePass& pass, const PointwiseStrip& at, void* scratch);

}  // namespace heddle::engine::cpu::HEDDLE_CPU_LEVEL
