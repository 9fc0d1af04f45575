// Scores themselves, for who asks for them beside the output.
#pragma once

#include "engine/cpu/kernels/real.h"

namespace heddle::engine::cpu::HEDDLE_CPU_LEVEL {

void write_scores(const ForwardPass& pass, int64_t b, int64_t h, int64_t row, void* scratch);

}  // namespace heddle::engine::cpu::HEDDLE_CPU_LEVEL
