// Sums over all rows of a head, by one block: dSink.
#pragma once

#include "../ptx/types.cuh"

namespace heddle::attention {

/// The sum of term(batch, row) over `batches` entries of `rows` rows, in a fixed order; in thread
/// 0. All threads take rows of all entries, however few an entry has, and sum in f64: 70000 entries
/// of 3 rows summed in f32 by 3 threads erred 13 times as much as the naive sum.
template <int kThreads, class Term>
HEDDLE_DEVICE float sum_of_rows(int batches, int rows, Term&& term) {
  __shared__ double partial[kThreads / 32];
  double sum = 0;
  if (rows > 0) {
    int batch = threadIdx.x / rows, row = threadIdx.x % rows;
    while (batch < batches) {
      sum += term(batch, row);
      batch += kThreads / rows;
      row += kThreads % rows;
      if (row >= rows) {
        row -= rows;
        ++batch;
      }
    }
  }
#pragma unroll
  for (int apart = 16; apart > 0; apart /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, apart);
  if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = sum;
  __syncthreads();
  for (int warp = 1; threadIdx.x == 0 && warp < kThreads / 32; ++warp) sum += partial[warp];
  return static_cast<float>(sum);
}

}  // namespace heddle::attention
