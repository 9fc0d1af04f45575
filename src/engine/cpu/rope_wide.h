// RoPE in f64, for f64 tensors: plain loops, one source for every machine.
#pragma once

#include "engine/cpu/kernels.h"

namespace heddle::engine::cpu {

/// Rows [first, last) of batch entry b; the pass's table is unused, `scale` is the exact factor.
void rope_rows_wide(const RopePass<float>& pass, double scale, int64_t b, int64_t first,
                    int64_t last);

}  // namespace heddle::engine::cpu
