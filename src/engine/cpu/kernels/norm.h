// RMSNorm, a row at a time in f32, and LayerNorm, of rows centred first: c = x, or x - mean(x).
// Beside a residual x is x + residual + residual_bias, summed in f32.
//   r = 1 / sqrt(mean(c^2) + epsilon),  y = c r w + b
//   g = dy w,  dx = r (g - xh mean(g xh) - (centred: mean(g))),  dw = sum dy xh,  db = sum dy,
//   xh = c r
#pragma once

#include "engine/cpu/kernels/vector.h"
#include "engine/cpu/norm_arguments.h"

namespace heddle::engine::cpu::HEDDLE_CPU_LEVEL {

void norm_rows(const NormPass<float>& pass, RowRange rows, float* scratch);
/// The rows of one chunk, whose sums are number `chunk`.
void norm_backward_rows(const NormBackwardPass<float>& pass, RowRange rows, int64_t chunk,
                        float* scratch);

}  // namespace heddle::engine::cpu::HEDDLE_CPU_LEVEL
