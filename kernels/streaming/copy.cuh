// A tensor's rows written to another of perhaps another type, other strides, and wider or narrower
// rows: columns that the first has not are zeros, those that the second has not are left out.
#pragma once

#include "../ptx/sync.cuh"
#include "config.h"
#include "rows.cuh"
#include "vector.cuh"

namespace heddle::streaming {

template <class Config>
struct Copy {
  using C = Config;
  using X = typename C::X;
  using Y = typename C::Y;
  static constexpr int kThreads = 256;
  /// Elements of a row that a thread takes, in each of some heads.
  static constexpr int kRun = kCopiedRun;
  /// Of an access; both divide the length of every row, so that none crosses its end.
  static constexpr int kXEach = C::kXEach, kYEach = C::kYEach;
  /// Heads whose elements are on their way together, before those of any are written.
  static constexpr int kHeads = 4;

  /// Grid (batch * blocks, ceil(heads / heads_per_block)), where blocks = ceil(length *
  /// ceil(y_columns / kRun) / kThreads).
  HEDDLE_DEVICE static void run(const CopyArguments& args) {
    ptx::grid_dependents_launch();
    const int units = ceil_div(args.y_columns, kRun), batch = blockIdx.x / args.blocks;
    const int index = (blockIdx.x - batch * args.blocks) * kThreads + threadIdx.x;
    const int row = index / units, column = (index - row * units) * kRun;
    const RowPlace at = place_of<C::kRagged>(args, batch, row);
    if (!at.exists) return;
    const int head = blockIdx.y * args.heads_per_block;
    const int heads = min_of(args.heads - head, args.heads_per_block);
    const X* x = static_cast<const X*>(args.x) + at.x + head * args.x_stride[1] + column;
    Y* y = static_cast<Y*>(args.y) + at.y + head * args.y_stride[1] + column;
    for (int first = 0; first < heads; first += kHeads) {
      Packed<X, kXEach> in[kHeads][kRun / kXEach];
#pragma unroll
      for (int h = 0; h < kHeads; ++h) {
#pragma unroll
        for (int i = 0; i < kRun; i += kXEach)
          in[h][i / kXEach].load_if(first + h < heads && column + i < args.x_columns,
                                    x + (first + h) * args.x_stride[1] + i);
      }
#pragma unroll
      for (int h = 0; h < kHeads; ++h) {
        if (first + h < heads)
          write(args, in[h], y + (first + h) * args.y_stride[1], args.y_columns - column);
      }
    }
  }

 private:
  HEDDLE_DEVICE static void write(const CopyArguments& args,
                                  const Packed<X, kXEach> (&in)[kRun / kXEach], Y* y, int columns) {
    float value[kRun];
#pragma unroll
    for (int i = 0; i < kRun; i += kXEach) {
      float some[kXEach];
      in[i / kXEach].get(some);
#pragma unroll
      for (int n = 0; n < kXEach; ++n) value[i + n] = some[n];
    }
#pragma unroll
    for (int i = 0; i < kRun; i += kYEach) {
      float some[kYEach];
#pragma unroll
      for (int n = 0; n < kYEach; ++n) some[n] = value[i + n];
      Packed<Y, kYEach> out;
      out.set(some);
      if (i < columns) out.store(y + i);
    }
  }
};

}  // namespace heddle::streaming
