// A tensor's rows written to another of perhaps another type, other strides, and wider or narrower
// rows: columns that the first has not are zeros, those that the second has not are left out. Codes
// become the numbers that they stand for.
#pragma once

#include "../attention/codes.cuh"
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
  using XCodes = attention::Codes<X>;
  static constexpr bool kCodes = XCodes::kColumns > 0;
  /// Columns of an element of x.
  static constexpr int kXColumns = max_of(XCodes::kColumns, 1);
  /// Of an access; both divide the length of every row, so that none crosses its end.
  static constexpr int kXEach = C::kXEach, kYEach = C::kYEach;
  /// Heads whose elements are on their way together, before those of any are written.
  static constexpr int kHeads = 4;
  using Run = Packed<X, kXEach>[kRun / (kXEach * kXColumns)];

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
    const X* x =
        static_cast<const X*>(args.x) + at.x + head * args.x_stride[1] + column / kXColumns;
    Y* y = static_cast<Y*>(args.y) + at.y + head * args.y_stride[1] + column;
    for (int first = 0; first < heads; first += kHeads) {
      Run in[kHeads];
#pragma unroll
      for (int h = 0; h < kHeads; ++h) {
#pragma unroll
        for (int i = 0; i < kRun / kXColumns; i += kXEach)
          in[h][i / kXEach].load_if(first + h < heads && column + i * kXColumns < args.x_columns,
                                    x + (first + h) * args.x_stride[1] + i);
      }
#pragma unroll
      for (int h = 0; h < kHeads; ++h) {
        if (first + h < heads)
          write(args, in[h], y + (first + h) * args.y_stride[1], head + first + h, column);
      }
    }
  }

 private:
  HEDDLE_DEVICE static void read(const CopyArguments& args, const Run& in, int head, int column,
                                 float (&value)[kRun]) {
    if constexpr (kCodes) {
      constexpr int kBits = 8 / kXColumns, kEachColumns = kXEach * kXColumns;
#pragma unroll
      for (int n = 0; n < kRun; ++n) {
        // Of columns that x has not there is no scale.
        const bool exists = column + n < args.x_columns;
        const int bit = kBits * (n % kEachColumns);
        const u32 code = in[n / kEachColumns].word[0][bit / 32] >> bit % 32 & ((1u << kBits) - 1);
        const float scale = args.scales[head * args.scale_stride[0] +
                                        (exists ? column + n : 0) * args.scale_stride[1]];
        value[n] = exists ? XCodes::number(code) * scale : 0.0f;
      }
    } else {
#pragma unroll
      for (int i = 0; i < kRun; i += kXEach) {
        float some[kXEach];
        in[i / kXEach].get(some);
#pragma unroll
        for (int n = 0; n < kXEach; ++n) value[i + n] = some[n];
      }
    }
  }

  HEDDLE_DEVICE static void write(const CopyArguments& args, const Run& in, Y* y, int head,
                                  int column) {
    float value[kRun];
    read(args, in, head, column, value);
    const int columns = args.y_columns - column;
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
