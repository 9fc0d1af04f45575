#pragma once

#include "engine/cpu/kernels/real.h"

namespace heddle::engine::cpu::HEDDLE_CPU_LEVEL {

void row_dots(const BackwardPass& pass, int64_t b, int64_t h, int64_t first, int64_t last,
              void* scratch);
void sink_gradient(const BackwardPass& pass, int64_t h);
void backward(const BackwardPass& pass, const BackwardTask& task, void* scratch);
void query_gradients(const BackwardPass& pass, int64_t b, int64_t h, int64_t first, int64_t last,
                     void* scratch);
void load_gradient(const BackwardPass& pass, const LoadGradientPass& load,
                   const LoadGradientTask& task, void* scratch);

}  // namespace heddle::engine::cpu::HEDDLE_CPU_LEVEL
