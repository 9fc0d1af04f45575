// What the general backward sums along rows, in kernels of their own: delta before the sweeps,
// dSink after it.
#pragma once

#include "../attention/row_sum.cuh"
#include "backward_cell.cuh"

namespace heddle::sm80 {

/// dL/d(log-sum-exp) of a row. One without weights has no gradients, whatever its own is.
template <class Config>
HEDDLE_DEVICE float stats_gradient(const BackwardParameters& p, int batch, int head, int row) {
  constexpr bool kExact = is_same<typename Config::Element, float>;
  const RowStatistic of =
      row_statistic<Config::kMaxAndSum, kExact, Config::kInputIsLog2, !Config::kHasScore>(
          p, batch, head, row);
  if (of.reference == -kMinusInfinity) return 0.0f;
  return *attention::element_pointer<const float>(p.d_stats, batch, head, row, 0);
}

/// delta = rowsum(dO * O), less dL/d(log-sum-exp), one warp a row; 0 for rows past the sequence,
/// whose O and dO may be NaN.
template <class Config>
HEDDLE_DEVICE void attention_backward_delta(const BackwardParameters& p) {
  using T = typename Config::Element;
  const int row = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32, head = blockIdx.y,
            batch = blockIdx.z + p.forward.first_batch;
  if (row >= p.forward.q_length) return;
  using Sum = typename Choice<is_same<T, float>, double, float>::Type;
  Sum sum = 0;
  const bool exists = row < attention::length_of(p.forward.q_lengths, batch);
  if (exists) {
    const T* o = attention::element_pointer<const T>(p.forward.o, batch, head, row, 0);
    const T* d_o = attention::element_pointer<const T>(p.d_o, batch, head, row, 0);
    for (int column = threadIdx.x % 32; column < Config::kVDim; column += 32)
      sum += static_cast<Sum>(ptx::widen(o[column])) * ptx::widen(d_o[column]);
  }
#pragma unroll
  for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
  if (threadIdx.x % 32 == 0) {
    if constexpr (attention::kArgumentLayout.stats_gradient)
      if (exists) sum -= stats_gradient<Config>(p, batch, head, row);
    const float high = static_cast<float>(sum);
    delta_of(p, batch, head)[row] = {high, static_cast<float>(sum - high)};
  }
}

/// dSink[h] = -sum over batch and rows of exp(sink - stats) * delta, in a fixed order; one block a
/// head.
template <class Config, int kThreads>
HEDDLE_DEVICE void attention_backward_sink(const BackwardParameters& p) {
  const int head = blockIdx.x;
  const float sink = p.forward.sink[head];  // natural, whatever scores are
  const auto term = [&](int batch, int row) {
    if (row >= attention::length_of(p.forward.q_lengths, batch)) return 0.0f;
    constexpr bool kExact = is_same<typename Config::Element, float>;
    const RowStatistic of =
        row_statistic<Config::kMaxAndSum, kExact, false, true>(p, batch, head, row);
    const float exponent =
        attention::weight_exponent<false>(sink - of.reference, kLog2E, -of.log2_sum);
    return -ptx::exp2(exponent) * delta_of(p, batch, head)[row].high;
  };
  const float sum = attention::sum_of_rows<kThreads>(p.forward.batch, p.forward.q_length, term);
  if (threadIdx.x == 0) p.d_sink[head] = sum;
}

}  // namespace heddle::sm80
