// Runs of elements between global memory and f32 registers, in the widest accesses they allow.
#pragma once

#include "../ptx/math.cuh"
#include "../ptx/types.cuh"
#include "arguments.h"

namespace heddle::streaming {

/// kCount elements as they lie in memory; aligned to their size, at most 16 bytes an access.
template <typename T, int kCount>
struct Packed {
  static constexpr int kBytes = kCount * static_cast<int>(sizeof(T));
  static constexpr int kAccess = kBytes < 16 ? kBytes : 16;
  struct alignas(kAccess) Access {
    T value[kAccess / sizeof(T)];
  };
  Access part[kBytes / kAccess];

  HEDDLE_DEVICE void load(const T* from) {
#pragma unroll
    for (int i = 0; i < kBytes / kAccess; ++i) part[i] = reinterpret_cast<const Access*>(from)[i];
  }
  HEDDLE_DEVICE void store(T* to) const {
#pragma unroll
    for (int i = 0; i < kBytes / kAccess; ++i) reinterpret_cast<Access*>(to)[i] = part[i];
  }
  HEDDLE_DEVICE float get(int i) const {
    constexpr int kEach = kAccess / sizeof(T);
    return ptx::widen(part[i / kEach].value[i % kEach]);
  }
  HEDDLE_DEVICE void set(int i, float x) {
    constexpr int kEach = kAccess / sizeof(T);
    part[i / kEach].value[i % kEach] = ptx::narrow<T>(x);
  }
};

/// 1 / sqrt(x) to 1 ulp: the approximation and one Newton step, without the slow paths of a
/// division and a root. x > 0.
HEDDLE_DEVICE float reciprocal_root(float x) {
  const float y = rsqrtf(x);
  const float error = fmaf(-x * y, y, 1.0f);
  return fmaf(0.5f * y, error, y);
}

HEDDLE_DEVICE i64 row_offset(const RowDims& dims, const RowStrides& strides, int row) {
  if (dims.extent[0] == 1 && dims.extent[1] == 1) return row * strides.stride[2];
  const int inner = row % dims.extent[2], outer = row / dims.extent[2];
  return inner * strides.stride[2] + outer % dims.extent[1] * strides.stride[1] +
         outer / dims.extent[1] * strides.stride[0];
}

/// Sum over the kThreads threads (a power of two) that share a row, given to all of them. Rows of
/// more than a warp meet in `slots` (two runs of a float per warp, used in turn) at barrier
/// 1 + group.
template <int kThreads>
HEDDLE_DEVICE float row_sum(float x, float* slots, int group, int turn) {
#pragma unroll
  for (int apart = min_of(kThreads, 32) / 2; apart > 0; apart /= 2)
    x += __shfl_xor_sync(0xffffffffu, x, apart);
  if constexpr (kThreads > 32) {
    constexpr int kWarps = kThreads / 32;
    float* mine = slots + (group * 2 + turn) * kWarps;
    if (threadIdx.x % 32 == 0) mine[threadIdx.x / 32 % kWarps] = x;
    asm volatile("bar.sync %0, %1;" ::"r"(1 + group), "n"(kThreads) : "memory");
    x = mine[0];
#pragma unroll
    for (int warp = 1; warp < kWarps; ++warp) x += mine[warp];
  }
  return x;
}

}  // namespace heddle::streaming
