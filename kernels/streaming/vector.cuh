// Runs of elements between global memory and the registers arithmetic is done in, in the widest
// accesses they allow.
#pragma once

#include "../ptx/math.cuh"
#include "../ptx/types.cuh"
#include "arguments.h"

namespace heddle::streaming {

/// An element as a Number (float, or double where any operand is f64).
template <typename Number, typename T>
HEDDLE_DEVICE Number widen_to(T x) {
  if constexpr (is_same<T, double>)
    return static_cast<Number>(x);
  else
    return static_cast<Number>(ptx::widen(x));
}

/// A Number rounded to T; from f64 to 16 bits by way of f32.
template <typename T, typename Number>
HEDDLE_DEVICE T narrow_to(Number x) {
  if constexpr (is_same<T, double>)
    return static_cast<double>(x);
  else
    return ptx::narrow<T>(static_cast<float>(x));
}

template <typename Number>
HEDDLE_DEVICE Number value_of(const Real& real) {
  if constexpr (is_same<Number, double>)
    return real.wide;
  else
    return real.narrow;
}

/// kCount elements as they lie in memory, kEach of them an access: aligned to their size, which is
/// at most 16 bytes.
template <typename T, int kCount, int kEach = min_of(kCount, 16 / static_cast<int>(sizeof(T)))>
struct Packed {
  struct alignas(kEach * sizeof(T)) Access {
    T value[kEach];
  };
  Access part[kCount / kEach];

  HEDDLE_DEVICE void load(const T* from) {
#pragma unroll
    for (int i = 0; i < kCount / kEach; ++i) part[i] = reinterpret_cast<const Access*>(from)[i];
  }
  HEDDLE_DEVICE void store(T* to) const {
#pragma unroll
    for (int i = 0; i < kCount / kEach; ++i) reinterpret_cast<Access*>(to)[i] = part[i];
  }
  template <typename Number>
  HEDDLE_DEVICE Number get(int i) const {
    return widen_to<Number>(part[i / kEach].value[i % kEach]);
  }
  template <typename Number>
  HEDDLE_DEVICE void set(int i, Number x) {
    part[i / kEach].value[i % kEach] = narrow_to<T>(x);
  }
};

/// 1 / sqrt(x), x >= 0, to 1 ulp: the approximation and one Newton step, without the slow paths of
/// a division and a root.
HEDDLE_DEVICE float reciprocal_root(float x) {
  const float y = rsqrtf(x);
  const float error = fmaf(-x * y, y, 1.0f);
  return x > 0.0f && y > 0.0f ? fmaf(0.5f * y, error, y) : y;  // 1/0 and 1/inf have no error
}
HEDDLE_DEVICE double reciprocal_root(double x) { return 1.0 / sqrt(x); }

/// Small products are kept: ptx::fma would make them 0.
HEDDLE_DEVICE float multiply_add(float a, float b, float c) { return fmaf(a, b, c); }
HEDDLE_DEVICE double multiply_add(double a, double b, double c) { return fma(a, b, c); }

/// Where the index-th of the elements counted over kDims dims lies. kDims = 0: there is one.
template <int kDims>
HEDDLE_DEVICE i64 offset_of(const int (&extent)[kMaxDims], const long long (&stride)[kMaxDims],
                            int index) {
  i64 offset = 0;
#pragma unroll
  for (int d = kDims - 1; d > 0; --d) {
    const int outer = index / extent[d];
    offset += (index - outer * extent[d]) * stride[d];
    index = outer;
  }
  if constexpr (kDims > 0) offset += index * stride[0];
  return offset;
}

/// How rows lie, what a generated configuration of a norm starts from.
struct RowsConfig {
  using Number = float;              ///< of all arithmetic
  static constexpr int kVector = 8;  ///< elements an access: 16 bytes of X, or 1
  static constexpr int kRowDims = 1, kColumnDims = 1;
};

/// The elements of a tensor's row.
template <class Config, typename T>
struct Row {
  T* data;
  const Extents& extents;
  const Tensor& tensor;

  HEDDLE_DEVICE Row(const Extents& all, const Tensor& of, int row)
      : data(static_cast<T*>(of.data) + offset_of<Config::kRowDims>(all.rows, of.row_stride, row)),
        extents(all),
        tensor(of) {}
  /// kVector elements from `column` on. Where kVector > 1, columns are dense.
  HEDDLE_DEVICE T* at(int column) const {
    if constexpr (Config::kVector > 1)
      return data + column;
    else
      return data + offset_of<Config::kColumnDims>(extents.columns, tensor.column_stride, column);
  }
};
/// A tensor that has columns only, or only rows.
template <class Config, typename T>
HEDDLE_DEVICE T* column_of(const Extents& extents, const Tensor& tensor, int column) {
  if constexpr (Config::kVector > 1)
    return static_cast<T*>(tensor.data) + column;
  else
    return static_cast<T*>(tensor.data) +
           offset_of<Config::kColumnDims>(extents.columns, tensor.column_stride, column);
}
template <class Config, typename T>
HEDDLE_DEVICE T* row_of(const Extents& extents, const Tensor& tensor, int row) {
  return static_cast<T*>(tensor.data) +
         offset_of<Config::kRowDims>(extents.rows, tensor.row_stride, row);
}

/// Sum over the kThreads threads (a power of two) that share a row, given to all of them. Rows of
/// more than a warp meet in `slots` (two runs of a Number per warp, used in turn) at barrier
/// 1 + group.
template <int kThreads, typename Number>
HEDDLE_DEVICE Number row_sum(Number x, Number* slots, int group, int turn) {
#pragma unroll
  for (int apart = min_of(kThreads, 32) / 2; apart > 0; apart /= 2)
    x += __shfl_xor_sync(0xffffffffu, x, apart);
  if constexpr (kThreads > 32) {
    constexpr int kWarps = kThreads / 32;
    Number* mine = slots + (group * 2 + turn) * kWarps;
    if (threadIdx.x % 32 == 0) mine[threadIdx.x / 32 % kWarps] = x;
    asm volatile("bar.sync %0, %1;" ::"r"(1 + group), "n"(kThreads) : "memory");
    x = mine[0];
#pragma unroll
    for (int warp = 1; warp < kWarps; ++warp) x += mine[warp];
  }
  return x;
}

}  // namespace heddle::streaming
