// RMSNorm forward: a row is read once and stays in the registers of the threads that share it.
#pragma once

#include "../ptx/sync.cuh"
#include "config.h"
#include "vector.cuh"

namespace heddle::streaming {

template <class Number>
HEDDLE_DEVICE Number epsilon_of(const RmsNormArguments& args) {
  if (args.epsilon_operand == nullptr) return value_of<Number>(args.epsilon);
  return args.epsilon_is_64_bit
             ? static_cast<Number>(*static_cast<const double*>(args.epsilon_operand))
             : static_cast<const float*>(args.epsilon_operand)[0];
}

/// Adds the squares of one vector of a row.
template <class C>
HEDDLE_DEVICE void add_squares(const Packed<typename C::X, C::kVector>& x,
                               typename C::Number& sum) {
  typename C::Number value[C::kVector];
  x.get(value);
#pragma unroll
  for (int n = 0; n < C::kVector; ++n) sum = multiply_add(value[n], value[n], sum);
}

/// y from x, one vector of a row; weight and bias are loaded here.
template <class C>
HEDDLE_DEVICE void write_normalised(const RmsNormArguments& args,
                                    const Packed<typename C::X, C::kVector>& x,
                                    typename C::Number inv_rms, typename C::Y* y, int column) {
  using Number = typename C::Number;
  Packed<typename C::W, C::kVector> weight;
  weight.load(column_of<C, const typename C::W>(args.extents, args.weight, column));
  Number value[C::kVector], w[C::kVector];
  x.get(value);
  weight.get(w);
#pragma unroll
  for (int n = 0; n < C::kVector; ++n) value[n] = value[n] * inv_rms * w[n];
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
struct RmsNorm {
  using C = Config;
  using Number = typename C::Number;
  static constexpr int kThreads = max_of(C::kThreadsPerRow, 128);
  static constexpr int kGroups = kThreads / C::kThreadsPerRow;

  /// Grid: ceil(rows / kGroups).
  HEDDLE_DEVICE static void run(const RmsNormArguments& args) {
    ptx::grid_dependency_wait();
    __shared__ Number slots[2 * kThreads / 32];
    const int group = threadIdx.x / C::kThreadsPerRow, lane = threadIdx.x % C::kThreadsPerRow;
    const int row = blockIdx.x * kGroups + group;
    const bool exists = row < args.rows;
    const auto column_at = [&](int i) { return (i * C::kThreadsPerRow + lane) * C::kVector; };
    const Row<C, const typename C::X> x(args.extents, args.x, exists ? row : 0);

    Packed<typename C::X, C::kVector> packed[C::kVectors];
#pragma unroll
    for (int i = 0; i < C::kVectors; ++i)
      packed[i].load_if(exists && column_at(i) < args.columns, x.at(column_at(i)));
    Number sum = 0;
#pragma unroll
    for (int i = 0; i < C::kVectors; ++i) add_squares<C>(packed[i], sum);
    sum = row_sum<C::kThreadsPerRow>(sum, slots, group, 0, [] { __syncthreads(); });
    if (!exists) return;
    const Number inv_rms =
        reciprocal_root(sum * value_of<Number>(args.per_column) + epsilon_of<Number>(args));
    if (args.inv_rms.data != nullptr && lane == 0)
      *row_of<C, typename C::Statistic>(args.extents, args.inv_rms, row) =
          static_cast<typename C::Statistic>(inv_rms);

    const Row<C, typename C::Y> y(args.extents, args.y, row);
#pragma unroll
    for (int i = 0; i < C::kVectors; ++i)
      if (column_at(i) < args.columns)
        write_normalised<C>(args, packed[i], inv_rms, y.at(column_at(i)), column_at(i));
  }
};

/// Rows too long for registers: a block walks over a row twice.
template <class Config>
struct RmsNormLongRows {
  using C = Config;
  using Number = typename C::Number;
  static constexpr int kThreads = 512;

  /// Grid: rows.
  HEDDLE_DEVICE static void run(const RmsNormArguments& args) {
    ptx::grid_dependency_wait();
    __shared__ Number slots[2 * kThreads / 32];
    const int row = blockIdx.x;
    const Row<C, const typename C::X> x(args.extents, args.x, row);
    const Row<C, typename C::Y> y(args.extents, args.y, row);
    Packed<typename C::X, C::kVector> packed;
    Number sum = 0;
#pragma unroll 4
    for (int column = threadIdx.x * C::kVector; column < args.columns;
         column += kThreads * C::kVector) {
      packed.load(x.at(column));
      add_squares<C>(packed, sum);
    }
    sum = row_sum<kThreads>(sum, slots, 0, 0, [] { __syncthreads(); });
    const Number inv_rms =
        reciprocal_root(sum * value_of<Number>(args.per_column) + epsilon_of<Number>(args));
    if (args.inv_rms.data != nullptr && threadIdx.x == 0)
      *row_of<C, typename C::Statistic>(args.extents, args.inv_rms, row) =
          static_cast<typename C::Statistic>(inv_rms);
#pragma unroll 4
    for (int column = threadIdx.x * C::kVector; column < args.columns;
         column += kThreads * C::kVector) {
      packed.load(x.at(column));
      write_normalised<C>(args, packed, inv_rms, y.at(column), column);
    }
  }
};

}  // namespace heddle::streaming
