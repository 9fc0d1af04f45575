// Rotary embedding standing alone, forward and (with kInverse) backward. A thread rotates the same
// columns of one row in several heads, so that sines and cosines are found once.
#pragma once

#include "../ptx/sync.cuh"
#include "config.h"
#include "rotation.cuh"
#include "rows.cuh"
#include "sine_cosine.cuh"
#include "vector.cuh"

namespace heddle::streaming {

template <class Config>
struct Rope {
  using C = Config;
  using X = typename C::X;
  using Y = typename C::Y;
  using Number = typename C::Number;
  static constexpr int kThreads = 256;
  static constexpr int kPairs = C::kPairs;
  /// Elements of a run: halves take two runs of a row, interleaved pairs one of double length.
  static constexpr int kRun = C::kInterleaved ? 2 * kPairs : kPairs;
  template <typename T>
  using Run = Packed<T, kRun, C::kAligned ? min_of(kRun, 16 / static_cast<int>(sizeof(T))) : 1>;

  HEDDLE_DEVICE static i64 table_row(const RopeArguments& args, int batch, int row) {
    i64 position = args.first_row;
    if constexpr (C::kPositions)
      position = integer_at(args.positions, args.positions_are_64_bit,
                            batch * args.position_batch_stride +
                                (C::kPositionsPerRow ? row * args.position_row_stride : 0));
    return nearest_row(position, C::kPositionsPerRow ? 0 : row, args.table_rows);
  }

  /// Grid (batch * blocks, ceil(heads / heads_per_block)), where blocks = ceil(length * units /
  /// kThreads), units = rope_dim / (2 * kPairs) + (head_dim - rope_dim) / kRun.
  HEDDLE_DEVICE static void run(const RopeArguments& args) {
    ptx::grid_dependents_launch();
    run_block(args, blockIdx.x, blockIdx.y);
  }

  /// A block of that grid.
  HEDDLE_DEVICE static void run_block(const RopeArguments& args, int block, int group) {
    const int rotating_units = args.rope_dim / (2 * kPairs);
    const int units = rotating_units + (args.head_dim - args.rope_dim) / kRun;
    const int batch = block / args.blocks;
    const int index = (block - batch * args.blocks) * kThreads + threadIdx.x;
    const int row = index / units, unit = index - row * units;
    const RowPlace at = place_of<C::kRagged>(args, batch, row);
    if (!at.exists) return;
    const int head = group * args.heads_per_block;
    const int heads = min_of(args.heads - head, args.heads_per_block);
    const X* x = static_cast<const X*>(args.x) + at.x + head * args.x_stride[1];
    Y* y = static_cast<Y*>(args.y) + at.y + head * args.y_stride[1];
    if (unit >= rotating_units) {
      const int column = (unit - rotating_units) * kRun;
      pass(args, x, y, heads, column < args.first_column ? column : column + args.rope_dim);
    } else {
      rotate(args, x, y, heads, table_row(args, batch, row), unit);
    }
  }

 private:
  HEDDLE_DEVICE static void pass(const RopeArguments& args, const X* x, Y* y, int heads,
                                 int column) {
    for (int head = 0; head < heads; ++head) {
      Run<X> in;
      Run<Y> out;
      in.load(x + head * args.x_stride[1] + column);
      Number value[kRun];
      in.get(value);
#pragma unroll
      for (int n = 0; n < kRun; ++n) value[n] *= value_of<Number>(args.scale);
      out.set(value);
      out.store(y + head * args.y_stride[1] + column);
    }
  }

  /// kPairs entries of a table's row: of dense ones, 16 bytes at once.
  HEDDLE_DEVICE static void load_entries(const float* from, i64 stride, float (&to)[kPairs]) {
    if constexpr (kPairs % 4 == 0) {
      if (stride == 1 && reinterpret_cast<unsigned long long>(from) % 16 == 0) {
        Packed<float, kPairs> all;
        all.load(from);
        all.get(to);
        return;
      }
    }
#pragma unroll
    for (int n = 0; n < kPairs; ++n) to[n] = from[n * stride];
  }

  HEDDLE_DEVICE static void load_rotation(const RopeArguments& args, i64 entry, int unit,
                                          Number (&cosine)[kPairs], Number (&sine)[kPairs]) {
    const Number scale = value_of<Number>(args.scale);
    const int pair = unit * kPairs;
    float first[kPairs], second[kPairs];
    const i64 at = entry * args.first_stride[0] + pair * args.first_stride[1];
    load_entries((C::kTables ? args.cosines : args.angles) + at, args.first_stride[1], first);
    if constexpr (C::kTables)
      load_entries(args.sines + entry * args.second_stride[0] + pair * args.second_stride[1],
                   args.second_stride[1], second);
#pragma unroll
    for (int n = 0; n < kPairs; ++n) {
      cosine[n] = first[n];
      if constexpr (C::kTables)
        sine[n] = second[n];
      else
        sine_cosine(first[n], sine[n], cosine[n]);
      cosine[n] *= scale;
      sine[n] *= C::kInverse ? -scale : scale;
    }
    if constexpr (C::kRounded) round_rotation(args, entry, cosine, sine);
  }

  HEDDLE_DEVICE static float larger(float largest, float cosine, float sine) {
    return ptx::max(largest, ptx::max(fabsf(cosine), fabsf(sine)));
  }

  /// The row's unit is 1 wherever this thread's own would be: then others of the row that are
  /// smaller than f16 holds, or larger, change nothing. Else it is found in the whole row.
  HEDDLE_DEVICE static void round_rotation(const RopeArguments& args, i64 entry,
                                           float (&cosine)[kPairs], float (&sine)[kPairs]) {
    static_assert(is_same<Number, float> && !C::kInverse);
    float largest = 0;
#pragma unroll
    for (int n = 0; n < kPairs; ++n) largest = larger(largest, cosine[n], sine[n]);
    RotationUnit unit = rotation_unit(largest);
    if (unit.unit != 1.0f) {
      for (int pair = 0; pair < args.rope_dim / 2; ++pair) {
        const i64 at = entry * args.first_stride[0] + pair * args.first_stride[1];
        float c, s;
        if constexpr (C::kTables) {
          c = args.cosines[at];
          s = args.sines[entry * args.second_stride[0] + pair * args.second_stride[1]];
        } else {
          sine_cosine(args.angles[at], s, c);
        }
        largest = larger(largest, c * value_of<float>(args.scale), s * value_of<float>(args.scale));
      }
      unit = rotation_unit(largest);
    }
#pragma unroll
    for (int n = 0; n < kPairs; ++n) {
      ptx::unpack<f16>(packed_rotation(cosine[n], sine[n], unit), cosine[n], sine[n]);
      cosine[n] *= unit.unit;
      sine[n] *= unit.unit;
    }
  }

  /// A unit of one head: its runs of a row.
  static constexpr int kRuns = C::kInterleaved ? 1 : 2;

  HEDDLE_DEVICE static void turn(const Run<X> (&in)[kRuns], const Number (&cosine)[kPairs],
                                 const Number (&sine)[kPairs], Run<Y> (&out)[kRuns]) {
    Number value[kRuns][kRun];
#pragma unroll
    for (int i = 0; i < kRuns; ++i) in[i].get(value[i]);
#pragma unroll
    for (int n = 0; n < kPairs; ++n) {
      turn_pair(C::kInterleaved ? value[0][2 * n] : value[0][n],
                C::kInterleaved ? value[0][2 * n + 1] : value[kRuns - 1][n], cosine[n], sine[n]);
    }
#pragma unroll
    for (int i = 0; i < kRuns; ++i) out[i].set(value[i]);
  }

  /// Heads whose elements are on their way together, before those of any are written.
  static constexpr int kHeads = 4;

  HEDDLE_DEVICE static void rotate(const RopeArguments& args, const X* x, Y* y, int heads,
                                   i64 entry, int unit) {
    const int column = args.first_column + unit * kRun, apart = args.rope_dim / 2;
    Number cosine[kPairs], sine[kPairs];
    for (int first = 0; first < heads; first += kHeads) {
      Run<X> in[kHeads][kRuns];
#pragma unroll
      for (int h = 0; h < kHeads; ++h) {
        if (first + h >= heads) continue;
        const X* from = x + (first + h) * args.x_stride[1] + column;
#pragma unroll
        for (int i = 0; i < kRuns; ++i) in[h][i].load(from + i * apart);
      }
      if (first == 0) load_rotation(args, entry, unit, cosine, sine);
#pragma unroll
      for (int h = 0; h < kHeads; ++h) {
        if (first + h >= heads) continue;
        Y* to = y + (first + h) * args.y_stride[1] + column;
        Run<Y> out[kRuns];
        turn(in[h], cosine, sine, out);
#pragma unroll
        for (int i = 0; i < kRuns; ++i) out[i].store(to + i * apart);
      }
    }
  }
};

}  // namespace heddle::streaming
