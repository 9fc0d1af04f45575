// Norms in f64, for problems with an f64 tensor: plain loops, one source for every machine.
#pragma once

#include "engine/cpu/norm_arguments.h"

namespace heddle::engine::cpu {

void norm_rows_wide(const NormPass<double>& pass, RowRange rows);
void norm_backward_rows_wide(const NormBackwardPass<double>& pass, RowRange rows, int64_t chunk);

}  // namespace heddle::engine::cpu
