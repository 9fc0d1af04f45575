// Norms in f64, for problems with an f64 tensor: plain loops, one source for every machine.
#pragma once

#include "engine/cpu/norm_arguments.h"

namespace heddle::engine::cpu {

void norm_rows_wide(const NormPass<double>& pass, RowRange rows);
/// The rows of one chunk, whose sums are number `chunk`. scratch: of two rows, padded.
void norm_backward_rows_wide(const NormBackwardPass<double>& pass, RowRange rows, int64_t chunk,
                             double* scratch);

}  // namespace heddle::engine::cpu
