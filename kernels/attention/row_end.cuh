// The end of a query row: what its sums over keys become.
#pragma once

#include "../ptx/math.cuh"
#include "operand.cuh"
#include "row_statistics.cuh"

namespace heddle::attention {

/// What a row's scores came to: its maximum, in the units of scores, and what that was rounded by;
/// the sum of exponentials against it, each 2^excess times as large.
struct RowTerms {
  float top, sum;
  float top_rest = 0, excess = 0;
};

struct RowEnd {
  float factor;     ///< on the row's sum of weighted values
  bool has_output;  ///< else O is 0, and the factor means nothing
};

/// With kRounded there may be a rest and an excess.
/// A sink is not among a row's terms: it is one more logit, without a value. Statistics are written
/// with `writes`. A row that is not `valid`, beyond its sequence, saw nothing, and has no place in
/// a ragged tensor.
template <bool kExact, bool kInputIsLog2, bool kSink = true, bool kRounded = false>
HEDDLE_DEVICE RowEnd end_row(const ForwardParameters& p, int batch, int head, int row, bool valid,
                             bool writes, RowTerms terms) {
  const float to_log2 = kInputIsLog2 ? 1.0f : kLog2E;
  float top = terms.top, sum = terms.sum, rest = kRounded ? terms.top_rest : 0.0f;
  if (!valid) sum = 0, top = minus_infinity();
  RowEnd end{0, sum != 0};
  const float unit = !kRounded ? 1.0f : kExact ? exp2f(-terms.excess) : ptx::exp2(-terms.excess);
  if (kSink && p.sink && valid) {
    const float natural = p.sink[head];
    const float sink = kInputIsLog2 ? ptx::multiply_toward_zero(natural, kLog2E) : natural;
    const bool above = sink > top;
    const float joint = above ? sink : top, shift = joint == minus_infinity() ? 0.0f : joint;
    const float shrink = ptx::exp2(above ? (top - shift + rest) * to_log2 : 0.0f) * unit;
    if (above) rest = 0;
    sum = sum * shrink + ptx::exp2((sink - shift - rest) * to_log2);
    // The weights were taken relative to `top`; the output shrinks with them, and is NaN beside a
    // sink that is, also of a row that saw no key.
    end.factor = shrink / sum;
    end.has_output |= isnan(sum);
    top = joint;
  } else {
    end.factor = 1.0f / sum;
    sum *= unit;
  }
  const auto has_place = [&](const Tensor& tensor) {
    return tensor.data != nullptr && (valid || tensor.offsets == nullptr);
  };
  if (writes) {
    if (has_place(p.stats))
      *element_pointer<float>(p.stats, batch, head, row, 0) =
          log_sum_exp<kExact, kInputIsLog2>(top, sum, p.stats_log2 != 0, rest);
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
