// Runs of elements between global memory and the registers arithmetic is done in, in the widest
// accesses they allow.
#pragma once

#include "../ptx/global.cuh"
#include "../ptx/math.cuh"
#include "../ptx/types.cuh"
#include "arguments.h"

namespace heddle::streaming {

/// A Number rounded to T.
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
/// at most 16 bytes. They are kept in words, which the compiler loads all before it takes one
/// apart.
template <typename T, int kCount, int kEach = min_of(kCount, 16 / static_cast<int>(sizeof(T)))>
struct Packed {
  static constexpr int kSize = static_cast<int>(sizeof(T)), kBytes = kEach * kSize;
  static constexpr int kWords = max_of(1, kBytes / 4);  ///< of an access
  u32 word[kCount / kEach][kWords];

  HEDDLE_DEVICE void load(const T* from) {
#pragma unroll
    for (int i = 0; i < kCount / kEach; ++i) {
      const T* at = from + i * kEach;
      if constexpr (kBytes == 16) {
        const uint4 value = *reinterpret_cast<const uint4*>(at);
        word[i][0] = value.x, word[i][1] = value.y, word[i][2] = value.z, word[i][3] = value.w;
      } else if constexpr (kBytes == 8) {
        const uint2 value = *reinterpret_cast<const uint2*>(at);
        word[i][0] = value.x, word[i][1] = value.y;
      } else if constexpr (kBytes == 4) {
        word[i][0] = *reinterpret_cast<const u32*>(at);
      } else {
        word[i][0] = *reinterpret_cast<const u16*>(at);
      }
    }
  }
  /// Zeros, unless they exist. Of memory that the kernel does not write.
  HEDDLE_DEVICE void load_if(bool exists, const T* from) {
#pragma unroll
    for (int i = 0; i < kCount / kEach; ++i)
      ptx::load_if<kBytes>(exists, from + i * kEach, word[i]);
  }
  HEDDLE_DEVICE void store(T* to) const {
#pragma unroll
    for (int i = 0; i < kCount / kEach; ++i) {
      T* at = to + i * kEach;
      if constexpr (kBytes == 16)
        *reinterpret_cast<uint4*>(at) = make_uint4(word[i][0], word[i][1], word[i][2], word[i][3]);
      else if constexpr (kBytes == 8)
        *reinterpret_cast<uint2*>(at) = make_uint2(word[i][0], word[i][1]);
      else if constexpr (kBytes == 4)
        *reinterpret_cast<u32*>(at) = word[i][0];
      else
        *reinterpret_cast<u16*>(at) = static_cast<u16>(word[i][0]);
    }
  }

  template <typename Number>
  HEDDLE_DEVICE void get(Number (&to)[kCount]) const {
#pragma unroll
    for (int n = 0; n < kCount; ++n) {
      const u32(&words)[kWords] = word[n / kEach];
      const int i = n % kEach;
      if constexpr (kSize == 8) {
        to[n] = static_cast<Number>(__hiloint2double(words[2 * i + 1], words[2 * i]));
      } else if constexpr (kSize == 4) {
        to[n] = static_cast<Number>(__uint_as_float(words[i]));
      } else {
        float low, high;
        ptx::unpack<T>(words[i / 2], low, high);
        to[n] = static_cast<Number>(i % 2 == 0 ? low : high);
      }
    }
  }
  /// Rounded to T; from f64 to 16 bits by way of f32.
  template <typename Number>
  HEDDLE_DEVICE void set(const Number (&from)[kCount]) {
#pragma unroll
    for (int n = 0; n < kCount; ++n) {
      u32(&words)[kWords] = word[n / kEach];
      const int i = n % kEach;
      if constexpr (kSize == 8) {
        words[2 * i] = __double2loint(from[n]);
        words[2 * i + 1] = __double2hiint(from[n]);
      } else if constexpr (kSize == 4) {
        words[i] = __float_as_uint(static_cast<float>(from[n]));
      } else if (i % 2 == 0) {
        const bool has_next = kEach > 1;
        words[i / 2] = ptx::pack<T>(static_cast<float>(from[n]),
                                    has_next ? static_cast<float>(from[n + has_next]) : 0.0f);
      }
    }
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

/// Sums over the kThreads threads (a power of two) that share a row, given to all of them. Rows of
/// more than a warp meet in `slots` (two runs of kSums Numbers per warp, used in turn): meet()
/// returns when all threads of the row have come.
template <int kThreads, int kSums, typename Number, class Meet>
HEDDLE_DEVICE void sum_over_row(Number (&x)[kSums], Number* slots, int group, int turn, Meet meet) {
#pragma unroll
  for (int apart = min_of(kThreads, 32) / 2; apart > 0; apart /= 2) {
#pragma unroll
    for (int n = 0; n < kSums; ++n) x[n] += __shfl_xor_sync(0xffffffffu, x[n], apart);
  }
  if constexpr (kThreads > 32) {
    constexpr int kWarps = kThreads / 32;
    Number* mine = slots + (group * 2 + turn) * kSums * kWarps;
    if (threadIdx.x % 32 == 0) {
#pragma unroll
      for (int n = 0; n < kSums; ++n) mine[n * kWarps + threadIdx.x / 32 % kWarps] = x[n];
    }
    meet();
#pragma unroll
    for (int n = 0; n < kSums; ++n) {
      x[n] = mine[n * kWarps];
#pragma unroll
      for (int warp = 1; warp < kWarps; ++warp) x[n] += mine[n * kWarps + warp];
    }
  }
}

}  // namespace heddle::streaming
