// RMSNorm and LayerNorm forward: a row is read once and stays in the registers of the threads that
// share it. So does that of a sum with a residual, in f32 (or f64).
#pragma once

#include "../ptx/sync.cuh"
#include "config.h"
#include "vector.cuh"

namespace heddle::streaming {

template <class Number>
HEDDLE_DEVICE Number epsilon_of(const NormArguments& args) {
  if (args.epsilon_operand == nullptr) return value_of<Number>(args.epsilon);
  return args.epsilon_is_64_bit
             ? static_cast<Number>(*static_cast<const double*>(args.epsilon_operand))
             : static_cast<const float*>(args.epsilon_operand)[0];
}

/// Whether the mean of a row has to be corrected by that of the distances to it: it is rounded, and
/// off by more than a spread that f32 still tells apart allows. Of 16-bit numbers that lie so far
/// from 0 sums of thousands are exact, but not of their sums.
template <class C>
inline constexpr bool kCorrected = C::kCentred && (C::kAddsResidual || sizeof(typename C::X) > 2);

/// How a row is normalised: x_hat = (x - mean) * inv_rms + shift. RMSNorm has no mean; the shift,
/// if the mean is corrected, is minus that correction, normalised.
template <class C>
struct RowStatistics {
  using Number = typename C::Number;
  Number mean, inv_rms, shift;

  HEDDLE_DEVICE Number normalised(Number x) const {
    if constexpr (C::kCentred) x -= mean;
    return kCorrected<C> ? multiply_add(x, inv_rms, shift) : x * inv_rms;
  }
};

/// Those of a row of a group of threads, all kThreads of the block being here; they are written
/// where that is wanted. walk(visit) calls visit(x, exists) for each vector that the thread has of
/// the row; numbers that do not exist are 0.
template <class C, int kThreads, class Walk>
HEDDLE_DEVICE RowStatistics<C> statistics_of(const NormArguments& args, int row, int group,
                                             Walk walk) {
  using Number = typename C::Number;
  using Vector = Number[C::kVector];
  constexpr int kSums = kCorrected<C> ? 2 : 1, kWarps = kThreads / 32;
  __shared__ Number mean_slots[C::kCentred ? 2 * kWarps : 1], slots[2 * kSums * kWarps];
  const auto meet = [] { __syncthreads(); };
  const Number per_column = value_of<Number>(args.per_column);
  RowStatistics<C> of_row{};
  if constexpr (C::kCentred) {
    Number sum[1] = {};
    walk([&](const Vector& x, bool) {
#pragma unroll
      for (int n = 0; n < C::kVector; ++n) sum[0] += x[n];
    });
    sum_over_row<C::kThreadsPerRow>(sum, mean_slots, group, 0, meet);
    of_row.mean = sum[0] * per_column;
  }
  Number sums[kSums] = {};  // of squares, and of distances to the mean
  walk([&](const Vector& x, bool exists) {
    Number of_vector[kSums] = {};
#pragma unroll
    for (int n = 0; n < C::kVector; ++n) {
      const Number distance = C::kCentred ? x[n] - of_row.mean : x[n];
      of_vector[0] = multiply_add(distance, distance, of_vector[0]);
      if constexpr (kCorrected<C>) of_vector[1] += distance;
    }
#pragma unroll
    for (int n = 0; n < kSums; ++n) sums[n] += exists ? of_vector[n] : Number(0);
  });
  sum_over_row<C::kThreadsPerRow>(sums, slots, group, 0, meet);
  Number square = sums[0] * per_column, mean = of_row.mean, correction = 0;
  if constexpr (kCorrected<C>) {
    correction = sums[1] * per_column;
    square = multiply_add(-correction, correction, square);
    if (square < 0) square = 0;  // of equal numbers
    // Around 0 distances are rounded more than the numbers' sum was.
    if (mean * mean > square) mean += correction;
  }
  of_row.inv_rms = reciprocal_root(square + epsilon_of<Number>(args));
  of_row.shift = -correction * of_row.inv_rms;
  if (threadIdx.x % C::kThreadsPerRow == 0 && row < args.rows) {
    if constexpr (C::kCentred) {
      if (args.mean.data != nullptr)
        *row_of<C, typename C::Mean>(args.extents, args.mean, row) =
            static_cast<typename C::Mean>(mean);
    }
    if (args.inv_rms.data != nullptr)
      *row_of<C, typename C::Statistic>(args.extents, args.inv_rms, row) =
          static_cast<typename C::Statistic>(of_row.inv_rms);
  }
  return of_row;
}

/// A vector of what is normalised: x as it lies in memory.
template <class C, bool kSum = C::kAddsResidual>
struct Normalised : Packed<typename C::X, C::kVector> {};
/// Or its sum with a residual, and a bias.
template <class C>
struct Normalised<C, true> {
  using Number = typename C::Number;
  Number number[C::kVector];

  HEDDLE_DEVICE void add(const NormArguments& args, bool exists,
                         const Packed<typename C::X, C::kVector>& x,
                         const Packed<typename C::Residual, C::kVector>& residual, int column) {
    Number other[C::kVector];
    x.get(number);
    residual.get(other);
#pragma unroll
    for (int n = 0; n < C::kVector; ++n) number[n] += other[n];
    if constexpr (C::kAddsResidualBias) {
      if (!exists) return;
      Packed<typename C::ResidualBias, C::kVector> bias;
      bias.load(
          column_of<C, const typename C::ResidualBias>(args.extents, args.residual_bias, column));
      bias.get(other);
#pragma unroll
      for (int n = 0; n < C::kVector; ++n) number[n] += other[n];
    }
  }
  HEDDLE_DEVICE void get(Number (&to)[C::kVector]) const {
#pragma unroll
    for (int n = 0; n < C::kVector; ++n) to[n] = number[n];
  }
};

/// One vector of a row: the sum, if it is wanted, and y; weight and bias are loaded here.
template <class C>
HEDDLE_DEVICE void write_normalised(const NormArguments& args, const Normalised<C>& x,
                                    const RowStatistics<C>& of_row, int row, typename C::Y* y,
                                    int column) {
  using Number = typename C::Number;
  Packed<typename C::W, C::kVector> weight;
  weight.load(column_of<C, const typename C::W>(args.extents, args.weight, column));
  Number value[C::kVector], w[C::kVector];
  x.get(value);
  weight.get(w);
  if constexpr (C::kWantsSum) {
    Packed<typename C::Sum, C::kVector> sum;
    sum.set(value);
    sum.store(Row<C, typename C::Sum>(args.extents, args.sum, row).at(column));
  }
#pragma unroll
  for (int n = 0; n < C::kVector; ++n) value[n] = of_row.normalised(value[n]) * w[n];
  if constexpr (C::kBias) {
    Packed<typename C::B, C::kVector> bias;
    bias.load(column_of<C, const typename C::B>(args.extents, args.bias, column));
    Number b[C::kVector];
    bias.get(b);
#pragma unroll
    for (int n = 0; n < C::kVector; ++n) value[n] += b[n];
  }
  Packed<typename C::Y, C::kVector> out;
  out.set(value);
  out.store(y);
}

template <class Config>
struct Norm {
  using C = Config;
  using Number = typename C::Number;
  static constexpr int kThreads = max_of(C::kThreadsPerRow, 128);
  static constexpr int kGroups = kThreads / C::kThreadsPerRow;

  /// Grid: ceil(rows / kGroups).
  HEDDLE_DEVICE static void run(const NormArguments& args) {
    ptx::grid_dependency_wait();
    const int group = threadIdx.x / C::kThreadsPerRow, lane = threadIdx.x % C::kThreadsPerRow;
    const int row = blockIdx.x * kGroups + group;
    const bool exists = row < args.rows;
    const auto column_at = [&](int i) { return (i * C::kThreadsPerRow + lane) * C::kVector; };
    const auto is_there = [&](int i) { return exists && column_at(i) < args.columns; };
    const Row<C, const typename C::X> x(args.extents, args.x, exists ? row : 0);

    Normalised<C> held[C::kVectors];
    if constexpr (C::kAddsResidual) {
      const Row<C, const typename C::Residual> residual(args.extents, args.residual,
                                                        exists ? row : 0);
      Packed<typename C::X, C::kVector> of_x[C::kVectors];
      Packed<typename C::Residual, C::kVector> of_residual[C::kVectors];
#pragma unroll
      for (int i = 0; i < C::kVectors; ++i) {
        of_x[i].load_if(is_there(i), x.at(column_at(i)));
        of_residual[i].load_if(is_there(i), residual.at(column_at(i)));
      }
#pragma unroll
      for (int i = 0; i < C::kVectors; ++i)
        held[i].add(args, is_there(i), of_x[i], of_residual[i], column_at(i));
    } else {
#pragma unroll
      for (int i = 0; i < C::kVectors; ++i) held[i].load_if(is_there(i), x.at(column_at(i)));
    }
    const RowStatistics<C> of_row = statistics_of<C, kThreads>(args, row, group, [&](auto visit) {
#pragma unroll
      for (int i = 0; i < C::kVectors; ++i) {
        Number value[C::kVector];
        held[i].get(value);
        visit(value, !C::kCentred || column_at(i) < args.columns);  // 0 has no square anyway
      }
    });
    if (!exists) return;

    const Row<C, typename C::Y> y(args.extents, args.y, row);
#pragma unroll
    for (int i = 0; i < C::kVectors; ++i)
      if (column_at(i) < args.columns)
        write_normalised<C>(args, held[i], of_row, row, y.at(column_at(i)), column_at(i));
  }
};

/// Rows too long for registers: a block walks over a row for each statistic, and to write.
template <class Config>
struct NormLongRows {
  using C = Config;
  using Number = typename C::Number;
  static constexpr int kThreads = 512;
  static_assert(C::kThreadsPerRow == kThreads, "A block has one row.");
  /// Vectors on their way together; of two tensors twice as many are.
  static constexpr int kUnrolled = C::kAddsResidual ? 2 : 4;

  HEDDLE_DEVICE static void load(const NormArguments& args, int row, int column,
                                 Normalised<C>& held) {
    const auto* x = Row<C, const typename C::X>(args.extents, args.x, row).at(column);
    if constexpr (C::kAddsResidual) {
      Packed<typename C::X, C::kVector> of_x;
      Packed<typename C::Residual, C::kVector> of_residual;
      of_x.load(x);
      of_residual.load(
          Row<C, const typename C::Residual>(args.extents, args.residual, row).at(column));
      held.add(args, true, of_x, of_residual, column);
    } else {
      held.load(x);
    }
  }

  /// Grid: rows.
  HEDDLE_DEVICE static void run(const NormArguments& args) {
    ptx::grid_dependency_wait();
    const int row = blockIdx.x;
    const Row<C, typename C::Y> y(args.extents, args.y, row);
    Normalised<C> held;
    const RowStatistics<C> of_row = statistics_of<C, kThreads>(args, row, 0, [&](auto visit) {
#pragma unroll kUnrolled
      for (int column = threadIdx.x * C::kVector; column < args.columns;
           column += kThreads * C::kVector) {
        load(args, row, column, held);
        Number value[C::kVector];
        held.get(value);
        visit(value, true);
      }
    });
#pragma unroll kUnrolled
    for (int column = threadIdx.x * C::kVector; column < args.columns;
         column += kThreads * C::kVector) {
      load(args, row, column, held);
      write_normalised<C>(args, held, of_row, row, y.at(column), column);
    }
  }
};

}  // namespace heddle::streaming
