// RMSNorm forward: a row is read once and stays in the registers of the threads that share it.
#pragma once

#include "vector.cuh"

namespace heddle::streaming {

/// Defaults a generated configuration derives from and overrides.
struct RmsNormConfig {
  using X = bf16;
  using W = bf16;
  using Y = bf16;
  static constexpr int kVector = 8;           ///< elements an access: 16 bytes of X, or 1
  static constexpr int kVectors = 2;          ///< of a thread
  static constexpr int kThreadsPerRow = 256;  ///< 4 .. 1024, a power of two
  static constexpr bool kWeight = true, kBias = false;
};

template <class Config>
struct RmsNorm {
  using C = Config;
  static constexpr int kThreads = C::kThreadsPerRow > 128 ? C::kThreadsPerRow : 128;
  static constexpr int kGroups = kThreads / C::kThreadsPerRow;
  static constexpr int kMaxColumns = C::kThreadsPerRow * C::kVectors * C::kVector;

  /// Grid: ceil(rows / kGroups).
  HEDDLE_DEVICE static void run(const RmsNormArguments& args) {
    using X = typename C::X;
    using W = typename C::W;
    using Y = typename C::Y;
    __shared__ float slots[2 * kThreads / 32];
    const int group = threadIdx.x / C::kThreadsPerRow, lane = threadIdx.x % C::kThreadsPerRow;
    const int row = blockIdx.x * kGroups + group;
    const bool exists = row < args.rows;
    const X* x =
        static_cast<const X*>(args.x) + (exists ? row_offset(args.dims, args.x_strides, row) : 0);

    Packed<X, C::kVector> packed[C::kVectors];
#pragma unroll
    for (int i = 0; i < C::kVectors; ++i) {
      const int column = (i * C::kThreadsPerRow + lane) * C::kVector;
      if (exists && column < args.columns) packed[i].load(x + column);
    }
    float sum = 0;
#pragma unroll
    for (int i = 0; i < C::kVectors; ++i) {
      const int column = (i * C::kThreadsPerRow + lane) * C::kVector;
      if (exists && column < args.columns) {
#pragma unroll
        for (int n = 0; n < C::kVector; ++n)
          sum = ptx::fma(packed[i].get(n), packed[i].get(n), sum);
      }
    }
    sum = row_sum<C::kThreadsPerRow>(sum, slots, group, 0);
    if (!exists) return;
    const float epsilon = args.epsilon_operand != nullptr ? *args.epsilon_operand : args.epsilon;
    const float inv_rms =
        reciprocal_root(sum * ptx::reciprocal(static_cast<float>(args.columns)) + epsilon);
    if (args.inv_rms != nullptr && lane == 0) args.inv_rms[row] = inv_rms;

    Y* y = static_cast<Y*>(args.y) + row_offset(args.dims, args.y_strides, row);
#pragma unroll
    for (int i = 0; i < C::kVectors; ++i) {
      const int column = (i * C::kThreadsPerRow + lane) * C::kVector;
      if (column >= args.columns) continue;
      Packed<W, C::kVector> weight, bias;
      if constexpr (C::kWeight) weight.load(static_cast<const W*>(args.weight) + column);
      if constexpr (C::kBias) bias.load(static_cast<const W*>(args.bias) + column);
      Packed<Y, C::kVector> out;
#pragma unroll
      for (int n = 0; n < C::kVector; ++n) {
        float value = packed[i].get(n) * inv_rms;
        if constexpr (C::kWeight) value *= weight.get(n);
        if constexpr (C::kBias) value += bias.get(n);
        out.set(n, value);
      }
      out.store(y + column);
    }
  }
};

}  // namespace heddle::streaming
