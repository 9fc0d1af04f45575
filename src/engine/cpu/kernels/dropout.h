// What dropout multiplies each probability of a row by: 0 where it is dropped.
#pragma once

#include "engine/cpu/kernels/score.h"

namespace heddle::engine::cpu::HEDDLE_CPU_LEVEL {

/// factors[first .. last) of the cells' keys.
inline void dropout_factors(const DropoutArguments& dropout, const ScoreCells& cells,
                            float* factors) {
  const View& mask = *dropout.mask;
  const int64_t at = origin(mask, cells.b, cells.h) + cells.row * mask.stride[2];
  if (mask.stride[3] == 0) {
    fill(factors + cells.first, cells.last - cells.first, float_at(mask, at) * dropout.factor);
    return;
  }
  const int64_t start = at + (cells.j0 + cells.first) * mask.stride[3];
  const int64_t count = smaller(cells.last, cells.loadable) - cells.first;
  read_row(mask.element, mask.data + start * mask.element_bytes, mask.stride[3], mask.element_bytes,
           count, factors + cells.first);
  fill(factors + cells.first + count, cells.last - cells.first - count, 0);
  const Float factor = all(dropout.factor);
  for (int64_t j = cells.first; j < cells.last; j += kLanes)
    store(factors + j, multiply(load(factors + j), factor));
}

}  // namespace heddle::engine::cpu::HEDDLE_CPU_LEVEL
