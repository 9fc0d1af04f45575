// The end of a query row: what its sums over keys become.
#pragma once

#include "../ptx/math.cuh"
#include "operand.cuh"
#include "row_statistics.cuh"

namespace heddle::attention {

struct RowEnd {
  float factor;     ///< on the row's sum of weighted values
  bool has_output;  ///< else O is 0, and the factor means nothing
};

/// Of a row whose scores have the maximum `top`, in their own units, and whose exponentials against
/// it have the sum `sum`, a sink not among them: it is one more logit, without a value. Statistics
/// are written with `writes`. A row that is not `valid`, beyond its sequence, saw nothing, and has
/// no place in a ragged tensor.
template <bool kExact, bool kInputIsLog2>
HEDDLE_DEVICE RowEnd end_row(const ForwardParameters& p, int batch, int head, int row, bool valid,
                             bool writes, float top, float sum) {
  const float to_log2 = kInputIsLog2 ? 1.0f : kLog2E;
  if (!valid) sum = 0, top = minus_infinity();
  RowEnd end{0, sum != 0};
  if (p.sink && valid) {
    const float sink = p.sink[head] * (kInputIsLog2 ? kLog2E : 1.0f);
    const float joint = ptx::max(top, sink);
    const float shift = joint == minus_infinity() ? 0.0f : joint;
    const float shrink = ptx::exp2((top - shift) * to_log2);
    sum = sum * shrink + ptx::exp2((sink - shift) * to_log2);
    // The weights were taken relative to `top`; the output shrinks with them.
    end.factor = shrink / sum;
    top = joint;
  } else {
    end.factor = 1.0f / sum;
  }
  const auto has_place = [&](const Tensor& tensor) {
    return tensor.data != nullptr && (valid || tensor.offsets == nullptr);
  };
  if (writes) {
    if (has_place(p.stats))
      *element_pointer<float>(p.stats, batch, head, row, 0) =
          log_sum_exp<kExact, kInputIsLog2>(top, sum, p.stats_log2 != 0);
    if constexpr (kInputIsLog2) top = natural_maximum<kExact>(top, sum);
    if (has_place(p.max))  // running maxima pass over a NaN, sums do not
      *element_pointer<float>(p.max, batch, head, row, 0) = isnan(sum) ? sum : top;
    if (has_place(p.sum_exp)) *element_pointer<float>(p.sum_exp, batch, head, row, 0) = sum;
  }
  return end;
}

/// Whether nothing is written of rows beyond their sequence.
HEDDLE_DEVICE bool leaves_rows_beyond(const ForwardParameters& p) {
  const auto leaves = [](const Tensor& tensor) {
    return tensor.data == nullptr || tensor.offsets != nullptr;
  };
  return leaves(p.o) && leaves(p.stats) && leaves(p.max) && leaves(p.sum_exp);
}

}  // namespace heddle::attention
