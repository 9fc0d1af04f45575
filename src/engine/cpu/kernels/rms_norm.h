// RMSNorm, a row at a time in f32.
//   r = 1 / sqrt(mean(x^2) + epsilon),  y = x r w + b
//   g = dy w,  dx = r (g - xh mean(g xh)),  dw = sum dy xh,  db = sum dy,  xh = x r
#pragma once

#include "engine/cpu/kernels/vector.h"
#include "engine/cpu/norm_arguments.h"

namespace heddle::engine::cpu::HEDDLE_CPU_LEVEL {

void norm_rows(const NormPass<float>& pass, RowRange rows, float* scratch);
/// The rows of one chunk, whose sums are number `chunk`.
void norm_backward_rows(const NormBackwardPass<float>& pass, RowRange rows, int64_t chunk,
                        float* scratch);

}  // namespace heddle::engine::cpu::HEDDLE_CPU_LEVEL
