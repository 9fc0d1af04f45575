// RMSNorm backward. Persistent blocks walk over rows; each thread keeps the columns it owns of the
// weight's gradient in f32 registers, and a second kernel adds the blocks' sums in a fixed order.
#pragma once

#include "vector.cuh"

namespace heddle::streaming {

/// Defaults a generated configuration derives from and overrides.
struct RmsNormBackwardConfig {
  using X = bf16;
  using W = bf16;
  using Dy = bf16;
  using Dx = bf16;
  static constexpr int kVector = 8;           ///< elements an access: 16 bytes of X, or 1
  static constexpr int kVectors = 2;          ///< of a thread
  static constexpr int kThreadsPerRow = 256;  ///< 32 .. 512, a power of two
  static constexpr bool kPrefetch = true;     ///< the next row, in registers: kVectors up to 2
  static constexpr bool kWeight = true;
  static constexpr bool kDx = true, kDWeight = true, kDBias = false;
};

template <class Config>
struct RmsNormBackward {
  using C = Config;
  using X = typename C::X;
  using W = typename C::W;
  using Dy = typename C::Dy;
  static constexpr int kThreads = 512;
  static constexpr int kGroups = kThreads / C::kThreadsPerRow;
  static constexpr int kSums = C::kVectors * C::kVector;  ///< columns of a thread
  static constexpr int kMaxColumns = C::kThreadsPerRow * kSums;
  static_assert(kGroups <= 15, "a named barrier per row");

  /// Adds the groups' sums and writes the block's row of the partial sums.
  HEDDLE_DEVICE static void leave(const float (&sums)[kSums], float* shared, float* out,
                                  int columns) {
    const int group = threadIdx.x / C::kThreadsPerRow, lane = threadIdx.x % C::kThreadsPerRow;
#pragma unroll 1
    for (int turn = 0; turn < kGroups; ++turn) {
      if (group == turn) {
#pragma unroll
        for (int i = 0; i < kSums; ++i) {
          float* slot = shared + i * C::kThreadsPerRow + lane;  // bank by lane
          const float before = turn == 0 ? 0.0f : *slot;
          *slot = before + sums[i];
          const int column =
              (i / C::kVector * C::kThreadsPerRow + lane) * C::kVector + i % C::kVector;
          if (turn == kGroups - 1 && column < columns) out[column] = before + sums[i];
        }
      }
      __syncthreads();
    }
  }

  /// Grid: args.blocks, one or two a processor.
  HEDDLE_DEVICE static void run(const RmsNormBackwardArguments& args) {
    __shared__ float slots[2 * kThreads / 32];
    __shared__ float shared[kMaxColumns];
    const int group = threadIdx.x / C::kThreadsPerRow, lane = threadIdx.x % C::kThreadsPerRow;
    const float per_column = 1.0f / static_cast<float>(args.columns);
    float d_weight[kSums] = {}, d_bias[C::kDBias ? kSums : 1] = {};

    Packed<W, C::kVector> weight[C::kVectors];
    Packed<X, C::kVector> x[C::kVectors], x_next[C::kVectors];
    Packed<Dy, C::kVector> dy[C::kVectors], dy_next[C::kVectors];
    const auto column_of = [&](int i) { return (i * C::kThreadsPerRow + lane) * C::kVector; };
    const auto fetch = [&](int row) {
      if (row >= args.rows) return;
      const X* from_x = static_cast<const X*>(args.x) + row_offset(args.dims, args.x_strides, row);
      const Dy* from_dy =
          static_cast<const Dy*>(args.dy) + row_offset(args.dims, args.dy_strides, row);
#pragma unroll
      for (int i = 0; i < C::kVectors; ++i) {
        if (column_of(i) >= args.columns) continue;
        x_next[i].load(from_x + column_of(i));
        dy_next[i].load(from_dy + column_of(i));
      }
    };
    if constexpr (C::kWeight) {
#pragma unroll
      for (int i = 0; i < C::kVectors; ++i)
        if (column_of(i) < args.columns)
          weight[i].load(static_cast<const W*>(args.weight) + column_of(i));
    }

    int turn = 0;
    const int step = args.blocks * kGroups;
    if constexpr (C::kPrefetch) fetch(blockIdx.x * kGroups + group);
    for (int row = blockIdx.x * kGroups + group; row < args.rows; row += step) {
      if constexpr (!C::kPrefetch) fetch(row);
#pragma unroll
      for (int i = 0; i < C::kVectors; ++i) {
        x[i] = x_next[i];
        dy[i] = dy_next[i];
      }
      const float inv_rms = args.inv_rms[row];
      if constexpr (C::kPrefetch)
        fetch(row + step);  // in flight while this row is reduced and written

      float sum = 0;
#pragma unroll
      for (int i = 0; i < C::kVectors; ++i) {
        if (column_of(i) >= args.columns) continue;
#pragma unroll
        for (int n = 0; n < C::kVector; ++n) {
          const float g = dy[i].get(n), x_hat = x[i].get(n) * inv_rms;
          if constexpr (C::kDWeight)
            d_weight[i * C::kVector + n] = ptx::fma(g, x_hat, d_weight[i * C::kVector + n]);
          if constexpr (C::kDBias) d_bias[i * C::kVector + n] += g;
          sum = ptx::fma(C::kWeight ? g * weight[i].get(n) : g, x_hat, sum);
        }
      }
      if constexpr (!C::kDx) continue;
      const float mean = row_sum<C::kThreadsPerRow>(sum, slots, group, turn) * per_column;
      turn ^= 1;
      typename C::Dx* dx =
          static_cast<typename C::Dx*>(args.dx) + row_offset(args.dims, args.dx_strides, row);
#pragma unroll
      for (int i = 0; i < C::kVectors; ++i) {
        if (column_of(i) >= args.columns) continue;
        Packed<typename C::Dx, C::kVector> out;
#pragma unroll
        for (int n = 0; n < C::kVector; ++n) {
          const float g = C::kWeight ? dy[i].get(n) * weight[i].get(n) : dy[i].get(n);
          out.set(n, inv_rms * (g - x[i].get(n) * inv_rms * mean));
        }
        out.store(dx + column_of(i));
      }
    }

    float* partial = args.partial + static_cast<i64>(blockIdx.x) * args.columns;
    if constexpr (C::kDWeight) leave(d_weight, shared, partial, args.columns);
    if constexpr (C::kDBias)
      leave(d_bias, shared, partial + static_cast<i64>(args.blocks) * args.columns, args.columns);
  }

  static constexpr int kCombineThreads = 256;

  /// d_weight (blockIdx.y = 0) or d_bias (1) from the blocks' sums: always in the same order.
  /// Grid (ceil(columns / 32), 2), kCombineThreads threads.
  HEDDLE_DEVICE static void combine(const RmsNormBackwardArguments& args) {
    __shared__ float slots[kCombineThreads];
    W* out = static_cast<W*>(blockIdx.y == 0 ? args.d_weight : args.d_bias);
    if (out == nullptr) return;
    const float* partial = args.partial + static_cast<i64>(blockIdx.y) * args.blocks * args.columns;
    const int column = blockIdx.x * 32 + threadIdx.x % 32;
    constexpr int kSlices = kCombineThreads / 32;
    float sum = 0;
    if (column < args.columns) {
#pragma unroll 4
      for (int block = threadIdx.x / 32; block < args.blocks; block += kSlices)
        sum += partial[static_cast<i64>(block) * args.columns + column];
    }
    slots[threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.x >= 32 || column >= args.columns) return;
#pragma unroll
    for (int slice = 1; slice < kSlices; ++slice) sum += slots[slice * 32 + threadIdx.x];
    out[column] = ptx::narrow<W>(sum);
  }
};

}  // namespace heddle::streaming
