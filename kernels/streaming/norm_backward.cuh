// RMSNorm and LayerNorm backward. Persistent blocks walk over rows; each thread keeps the columns
// it owns of the weight's gradient in registers, and a second kernel adds the blocks' sums in a
// fixed order.
#pragma once

#include "../ptx/mbarrier.cuh"
#include "config.h"
#include "vector.cuh"

namespace heddle::streaming {

/// What the forward says of a row.
template <class C>
struct GivenStatistics {
  using Number = typename C::Number;
  Number mean = 0, inv_rms = 0;

  HEDDLE_DEVICE void load(const NormBackwardArguments& args, int row) {
    if constexpr (C::kCentred)
      mean = static_cast<Number>(*row_of<C, const typename C::Mean>(args.extents, args.mean, row));
    inv_rms = static_cast<Number>(
        *row_of<C, const typename C::Statistic>(args.extents, args.inv_rms, row));
  }
  HEDDLE_DEVICE Number normalised(Number x) const {
    if constexpr (C::kCentred) x -= mean;
    return x * inv_rms;
  }
};

/// What dx has less than inv_rms * g, g being dy * weight: x_hat times the mean of g x_hat and,
/// where rows are centred, the mean of g. First sums over a row, then times -inv_rms / columns.
template <class C>
struct RowGradient {
  using Number = typename C::Number;
  static constexpr int kSums = C::kCentred ? 2 : 1;
  Number sum[kSums] = {};

  HEDDLE_DEVICE void add(Number g, Number x_hat) {
    sum[0] = multiply_add(g, x_hat, sum[0]);
    if constexpr (C::kCentred) sum[1] += g;
  }
  HEDDLE_DEVICE void scale(Number per_column, Number inv_rms) {
#pragma unroll
    for (Number& one : sum) one = one * per_column * -inv_rms;
  }
  HEDDLE_DEVICE Number dx(Number g, Number x_hat, Number inv_rms) const {
    Number less = sum[0] * x_hat;
    if constexpr (C::kCentred) less = multiply_add(sum[0], x_hat, sum[1]);
    return multiply_add(inv_rms, g, less);
  }
};

/// Gradients of weight and bias from the blocks' sums, always in the same order.
template <class Config>
struct NormCombine {
  using C = Config;
  using Number = typename C::Number;
  static constexpr int kThreads = 256;

  /// d_weight (blockIdx.y = 0) or d_bias (1). Grid (ceil(columns / 32), 2).
  HEDDLE_DEVICE static void run(const NormBackwardArguments& args) {
    __shared__ Number slots[kThreads];
    if ((blockIdx.y == 0 ? args.d_weight : args.d_bias).data == nullptr) return;
    const Number* partial = static_cast<const Number*>(args.partial) +
                            static_cast<i64>(blockIdx.y) * args.blocks * args.columns;
    const int column = blockIdx.x * 32 + threadIdx.x % 32;
    constexpr int kSlices = kThreads / 32;
    Number sum = 0;
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
    if (blockIdx.y == 0)
      write<typename C::DWeight>(args, args.d_weight, column, sum);
    else
      write<typename C::DBias>(args, args.d_bias, column, sum);
  }

 private:
  template <typename T>
  HEDDLE_DEVICE static void write(const NormBackwardArguments& args, const Tensor& to, int column,
                                  Number sum) {
    *column_of<C, T>(args.extents, to, column) = narrow_to<T>(sum);
  }
};

/// A thread's sums of its columns, of kThreads threads: in registers,
template <typename Number, int kColumns, int kThreads, bool kShared>
struct ColumnSums {
  Number sums[kColumns] = {};

  HEDDLE_DEVICE Number& operator[](int column) { return sums[column]; }
};

/// or in shared memory, where a column of all threads lies together: a warp meets every bank once.
template <typename Number, int kColumns, int kThreads>
struct ColumnSums<Number, kColumns, kThreads, true> {
  Number* own;

  HEDDLE_DEVICE ColumnSums() {
    extern __shared__ __align__(16) u8 dynamic_shared[];
    own = reinterpret_cast<Number*>(dynamic_shared) + threadIdx.x;
#pragma unroll
    for (int column = 0; column < kColumns; ++column) (*this)[column] = 0;
  }
  HEDDLE_DEVICE Number& operator[](int column) { return own[column * kThreads]; }
};

template <class Config>
struct NormBackward {
  using C = Config;
  using Number = typename C::Number;
  using X = typename C::X;
  using W = typename C::W;
  using Dy = typename C::Dy;
  using Dx = typename C::Dx;
  static constexpr int kThreads = 512;
  static constexpr int kGroups = kThreads / C::kThreadsPerRow;
  static constexpr int kSums = C::kVectors * C::kVector;       ///< columns of a thread
  static constexpr int kRun = C::kThreadsPerRow * C::kVector;  ///< columns next to each other
  static constexpr int kPitch = kThreads + 32 / C::kVector;    ///< of slots: no bank is read twice

  /// Adds the groups' sums in their order, a run of columns at a time, and writes the block's row
  /// of the partial sums.
  template <class Sums>
  HEDDLE_DEVICE static void leave(Sums& sums, Number* shared, Number* out, int columns) {
#pragma unroll
    for (int i = 0; i < C::kVectors; ++i) {
      __syncthreads();
#pragma unroll
      for (int n = 0; n < C::kVector; ++n)
        shared[n * kPitch + threadIdx.x] = sums[i * C::kVector + n];
      __syncthreads();
#pragma unroll
      for (int at = threadIdx.x; at < kRun; at += kThreads) {
        const Number* slot = shared + at % C::kVector * kPitch + at / C::kVector;
        Number sum = slot[0];
#pragma unroll
        for (int group = 1; group < kGroups; ++group) sum += slot[group * C::kThreadsPerRow];
        if (i * kRun + at < columns) out[i * kRun + at] = sum;
      }
    }
  }

  /// Grid: args.blocks, one or two a processor.
  HEDDLE_DEVICE static void run(const NormBackwardArguments& args) {
    __shared__ Number slots[2 * RowGradient<C>::kSums * kThreads / 32];
    __shared__ Number shared[C::kVector * kPitch];
    __shared__ u64 barriers[kGroups];  ///< of each group's threads: met for a row's sum
    const u32 met = shared_address(barriers);
    // An instruction for each: synccheck keeps as many barriers as a kernel has such instructions,
    // and a launch with more fails under it.
    if (threadIdx.x == 0) {
#pragma unroll
      for (int n = 0; n < kGroups; ++n) ptx::mbarrier_init(met + 8 * n, C::kThreadsPerRow);
    }
    __syncthreads();
    const int group = threadIdx.x / C::kThreadsPerRow, lane = threadIdx.x % C::kThreadsPerRow;
    const Number per_column = value_of<Number>(args.per_column);
    ColumnSums<Number, C::kWantsDWeight ? kSums : 1, kThreads, false> d_weight;
    ColumnSums<Number, C::kWantsDBias ? kSums : 1, kThreads, C::kDBiasShared> d_bias;

    Packed<W, C::kVector> weight[C::kVectors];
    Packed<X, C::kVector> x[C::kVectors], x_next[C::kVectors];
    Packed<Dy, C::kVector> dy[C::kVectors], dy_next[C::kVectors];
    GivenStatistics<C> next;
    const auto column_at = [&](int i) { return (i * C::kThreadsPerRow + lane) * C::kVector; };
    const auto fetch = [&](int row) {
      const bool exists = row < args.rows;
      next.load(args, exists ? row : 0);
      const Row<C, const X> from_x(args.extents, args.x, exists ? row : 0);
      const Row<C, const Dy> from_dy(args.extents, args.dy, exists ? row : 0);
#pragma unroll
      for (int i = 0; i < C::kVectors; ++i) {
        const bool wanted = exists && column_at(i) < args.columns;
        x_next[i].load_if(wanted, from_x.at(column_at(i)));
        dy_next[i].load_if(wanted, from_dy.at(column_at(i)));
      }
    };
#pragma unroll
    for (int i = 0; i < C::kVectors; ++i)
      weight[i].load_if(column_at(i) < args.columns,
                        column_of<C, const W>(args.extents, args.weight, column_at(i)));

    int turn = 0;
    // A named barrier of a group alone takes as long or longer (2 % at 4096 columns), and beside
    // such barriers racecheck loses sight of __syncthreads.
    const auto meet = [&] {
      ptx::mbarrier_arrive(met + 8 * group);
      ptx::mbarrier_wait(met + 8 * group, turn);
    };
    const int step = args.blocks * kGroups;
    if constexpr (C::kPrefetch) fetch(blockIdx.x * kGroups + group);
    for (int row = blockIdx.x * kGroups + group; row < args.rows; row += step) {
      if constexpr (!C::kPrefetch) fetch(row);
#pragma unroll
      for (int i = 0; i < C::kVectors; ++i) {
        x[i] = x_next[i];
        dy[i] = dy_next[i];
      }
      const GivenStatistics<C> of_row = next;
      if constexpr (C::kPrefetch)
        fetch(row + step);  // in flight while this row is reduced and written

      RowGradient<C> gradient;
#pragma unroll
      for (int i = 0; i < C::kVectors; ++i) {
        if (column_at(i) >= args.columns) continue;
        Number value[C::kVector], g[C::kVector], w[C::kVector];
        x[i].get(value);
        dy[i].get(g);
        weight[i].get(w);
#pragma unroll
        for (int n = 0; n < C::kVector; ++n) {
          const Number x_hat = of_row.normalised(value[n]);
          if constexpr (C::kWantsDWeight)
            d_weight[i * C::kVector + n] = multiply_add(g[n], x_hat, d_weight[i * C::kVector + n]);
          if constexpr (C::kWantsDBias) d_bias[i * C::kVector + n] += g[n];
          gradient.add(g[n] * w[n], x_hat);
        }
      }
      if constexpr (!C::kWantsDx) continue;
      sum_over_row<C::kThreadsPerRow>(gradient.sum, slots, group, turn, meet);
      gradient.scale(per_column, of_row.inv_rms);
      turn ^= 1;
      const Row<C, Dx> dx(args.extents, args.dx, row);
#pragma unroll
      for (int i = 0; i < C::kVectors; ++i) {
        if (column_at(i) >= args.columns) continue;
        Number value[C::kVector], g[C::kVector], w[C::kVector];
        x[i].get(value);
        dy[i].get(g);
        weight[i].get(w);
#pragma unroll
        for (int n = 0; n < C::kVector; ++n)
          value[n] = gradient.dx(g[n] * w[n], of_row.normalised(value[n]), of_row.inv_rms);
        Packed<Dx, C::kVector> out;
        out.set(value);
        out.store(dx.at(column_at(i)));
      }
    }

    Number* partial =
        static_cast<Number*>(args.partial) + static_cast<i64>(blockIdx.x) * args.columns;
    if constexpr (C::kWantsDWeight) leave(d_weight, shared, partial, args.columns);
    if constexpr (C::kWantsDBias)
      leave(d_bias, shared, partial + static_cast<i64>(args.blocks) * args.columns, args.columns);
  }
};

/// Rows too long for registers: one kernel finds each row's RowGradient, the next takes a run of
/// columns down the rows.
template <class Config>
struct NormBackwardLongRows {
  using C = Config;
  using Number = typename C::Number;
  using X = typename C::X;
  using W = typename C::W;
  using Dy = typename C::Dy;
  using Dx = typename C::Dx;
  static constexpr int kMeansThreads = 512, kThreads = 256;

  /// Grid: rows. Not needed without dx.
  HEDDLE_DEVICE static void means(const NormBackwardArguments& args) {
    __shared__ Number slots[2 * RowGradient<C>::kSums * kMeansThreads / 32];
    const int row = blockIdx.x;
    const Row<C, const X> from_x(args.extents, args.x, row);
    const Row<C, const Dy> from_dy(args.extents, args.dy, row);
    Packed<X, C::kVector> x;
    Packed<Dy, C::kVector> dy;
    Packed<W, C::kVector> weight;
    GivenStatistics<C> of_row;
    of_row.load(args, row);
    RowGradient<C> gradient;
    for (int column = threadIdx.x * C::kVector; column < args.columns;
         column += kMeansThreads * C::kVector) {
      x.load(from_x.at(column));
      dy.load(from_dy.at(column));
      weight.load(column_of<C, const W>(args.extents, args.weight, column));
      Number value[C::kVector], g[C::kVector], w[C::kVector];
      x.get(value);
      dy.get(g);
      weight.get(w);
#pragma unroll
      for (int n = 0; n < C::kVector; ++n) gradient.add(g[n] * w[n], of_row.normalised(value[n]));
    }
    sum_over_row<kMeansThreads>(gradient.sum, slots, 0, 0, [] { __syncthreads(); });
    if (threadIdx.x != 0) return;
    gradient.scale(value_of<Number>(args.per_column), of_row.inv_rms);
    static_cast<RowGradient<C>*>(args.means)[row] = gradient;
  }

  /// Grid (ceil(columns / (kThreads * kVector)), args.blocks).
  HEDDLE_DEVICE static void run(const NormBackwardArguments& args) {
    const int column = (blockIdx.x * kThreads + threadIdx.x) * C::kVector;
    if (column >= args.columns) return;
    Packed<W, C::kVector> weight;
    weight.load(column_of<C, const W>(args.extents, args.weight, column));
    Number d_weight[C::kVector] = {}, d_bias[C::kVector] = {}, w[C::kVector];
    weight.get(w);
#pragma unroll 2
    for (int row = blockIdx.y; row < args.rows; row += args.blocks) {
      Packed<X, C::kVector> x;
      Packed<Dy, C::kVector> dy;
      Packed<Dx, C::kVector> out;
      x.load(Row<C, const X>(args.extents, args.x, row).at(column));
      dy.load(Row<C, const Dy>(args.extents, args.dy, row).at(column));
      GivenStatistics<C> of_row;
      of_row.load(args, row);
      RowGradient<C> gradient;
      if constexpr (C::kWantsDx) gradient = static_cast<const RowGradient<C>*>(args.means)[row];
      Number value[C::kVector], g[C::kVector];
      x.get(value);
      dy.get(g);
#pragma unroll
      for (int n = 0; n < C::kVector; ++n) {
        const Number x_hat = of_row.normalised(value[n]);
        d_weight[n] = multiply_add(g[n], x_hat, d_weight[n]);
        d_bias[n] += g[n];
        value[n] = gradient.dx(g[n] * w[n], x_hat, of_row.inv_rms);
      }
      out.set(value);
      if constexpr (C::kWantsDx) out.store(Row<C, Dx>(args.extents, args.dx, row).at(column));
    }
    Number* partial =
        static_cast<Number*>(args.partial) + static_cast<i64>(blockIdx.y) * args.columns + column;
#pragma unroll
    for (int n = 0; n < C::kVector; ++n) {
      if constexpr (C::kWantsDWeight) partial[n] = d_weight[n];
      if constexpr (C::kWantsDBias)
        partial[static_cast<i64>(args.blocks) * args.columns + n] = d_bias[n];
    }
  }
};

}  // namespace heddle::streaming
