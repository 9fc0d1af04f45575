// A tensor's rows times a number that the device holds, written to another of perhaps another type,
// scaled and rounded, where fp8 saturates; and the largest magnitude before that scale.
//
//   n = factor * x  (or factor / x, of x that is not 0)
//   y = scale * n,  largest = max |n|
#pragma once

#include "../attention/codes.cuh"
#include "../attention/largest.cuh"
#include "../ptx/math.cuh"
#include "config.h"
#include "rows.cuh"

namespace heddle::streaming {

/// An element as a number, and a number as an element.
template <typename T>
HEDDLE_DEVICE float number_of(T x) {
  if constexpr (is_same<T, float>)
    return x;
  else if constexpr (is_same<T, f8e4m3>)
    return attention::f8e4m3_number(x.bits);
  else if constexpr (is_same<T, f8e5m2>)
    return attention::f8e5m2_number(x.bits);
  else
    return ptx::widen(x);
}
template <typename T>
HEDDLE_DEVICE T element_of(float x) {
  if constexpr (is_same<T, f8e4m3>)
    return {static_cast<u8>(x == x ? attention::f8e4m3_code(x) : 0x7f)};
  else if constexpr (is_same<T, f8e5m2>)
    return {static_cast<u8>(x == x ? attention::f8e5m2_code(x) : 0x7f)};
  else
    return ptx::narrow<T>(x);
}

template <class Config>
struct ScaledCopy {
  using C = Config;
  using X = typename C::X;
  using Y = typename C::Y;
  static constexpr int kThreads = 256;
  /// Elements of a row that a thread takes, in each of some heads.
  static constexpr int kRun = C::kRun;
  struct alignas(C::kRun * sizeof(X)) XRun {
    X at[kRun];
  };
  struct alignas(C::kRun * sizeof(Y)) YRun {
    Y at[kRun];
  };

  HEDDLE_DEVICE static float number_at(const float* number) {
    return number != nullptr ? *number : 1.0f;
  }

  /// Grid as Copy's, of columns / kRun units a row.
  HEDDLE_DEVICE static void run(const ScaledCopyArguments& args) {
    const int units = args.columns / kRun, batch = blockIdx.x / args.blocks;
    const int index = (blockIdx.x - batch * args.blocks) * kThreads + threadIdx.x;
    const int row = index / units, column = (index - row * units) * kRun;
    const RowPlace at = place_of<C::kRagged>(args, batch, row);
    const float factor = number_at(args.factor), scale = number_at(args.scale);
    u32 largest = 0;
    const int head = blockIdx.y * args.heads_per_block;
    const int heads = at.exists ? min_of(args.heads - head, args.heads_per_block) : 0;
    const X* x = static_cast<const X*>(args.x) + at.x + head * args.x_stride[1] + column;
    for (int h = 0; h < heads; ++h) {
      const XRun in = *reinterpret_cast<const XRun*>(x + h * args.x_stride[1]);
      float n[kRun];
#pragma unroll
      for (int i = 0; i < kRun; ++i) {
        const float given = number_of(in.at[i]);
        n[i] = C::kReciprocal ? (given == 0.0f ? 0.0f : factor / given) : given * factor;
        largest = attention::larger(largest, attention::magnitude(n[i]));
      }
      if constexpr (C::kWrites) {
        YRun out;
#pragma unroll
        for (int i = 0; i < kRun; ++i) out.at[i] = element_of<Y>(n[i] * scale);
        *reinterpret_cast<YRun*>(static_cast<Y*>(args.y) + at.y + (head + h) * args.y_stride[1] +
                                 column) = out;
      }
    }
    attention::raise(args.largest, largest);
  }
};

}  // namespace heddle::streaming
