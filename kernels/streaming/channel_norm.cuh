// Instance norm and batch norm, forward and backward. A row's columns are shared out in slices; a
// block has one slice of some rows: of channels that lie together 32, which its warps read side by
// side, else one. What a slice has is put together in the order of slices, so that the same inputs
// give the same bits.
#pragma once

#include "../ptx/sync.cuh"
#include "config.h"
#include "vector.cuh"

namespace heddle::streaming {

/// One element as a Number, and back.
template <typename Number, typename T>
HEDDLE_DEVICE Number number_of_element(const T* at) {
  Packed<T, 1> one;
  Number value[1];
  one.load(at);
  one.get(value);
  return value[0];
}
template <typename Number, typename T>
HEDDLE_DEVICE void set_element(T* at, Number value) {
  *at = narrow_to<T>(value);
}

HEDDLE_DEVICE double number_at(const Real& known, const void* operand, int is_64_bit) {
  if (operand == nullptr) return known.wide;
  return is_64_bit ? *static_cast<const double*>(operand)
                   : static_cast<double>(*static_cast<const float*>(operand));
}

/// The rows and columns of a block's threads. Grid (ceil(rows / kAcross), slices).
template <class C>
struct Slice {
  static constexpr int kThreads = 256, kDown = kThreads / C::kAcross;
  using Number = typename C::Number;
  int row, down, first, last;
  bool exists;

  template <class Arguments>
  HEDDLE_DEVICE explicit Slice(const Arguments& args)
      : row(blockIdx.x * C::kAcross + threadIdx.x % C::kAcross),
        down(threadIdx.x / C::kAcross),
        first(blockIdx.y * args.slice_columns),
        last(min_of(args.columns, first + args.slice_columns)),
        exists(row < args.rows) {
    if (!exists) row = 0;
  }
  template <class Visit>
  HEDDLE_DEVICE void for_each_column(Visit visit) const {
    if (!exists) return;
#pragma unroll 4
    for (int column = first + down; column < last; column += kDown) visit(column);
  }
  /// The sum over the threads of a row, given to all of them.
  HEDDLE_DEVICE static Number sum(Number x) {
    __shared__ Number slots[kThreads];
    __syncthreads();
    slots[threadIdx.x] = x;
#pragma unroll
    for (int apart = kThreads / 2; apart >= C::kAcross; apart /= 2) {
      __syncthreads();
      if (static_cast<int>(threadIdx.x) < apart) slots[threadIdx.x] += slots[threadIdx.x + apart];
    }
    __syncthreads();
    return slots[threadIdx.x % C::kAcross];
  }
};

/// Threads of a block whose threads have a row each.
inline constexpr int kRowThreads = 128;

HEDDLE_DEVICE int row_of_thread() { return blockIdx.x * kRowThreads + threadIdx.x; }

template <class Config>
struct ChannelNorm {
  using C = Config;
  using Number = typename C::Number;

  /// A slice's mean, and the sum of squares of distances to it.
  HEDDLE_DEVICE static void slices(const ChannelNormArguments& args) {
    ptx::grid_dependency_wait();
    const Slice<C> slice(args);
    const Row<C, const typename C::X> x(args.extents, args.x, slice.row);
    const auto count = static_cast<Number>(slice.last - slice.first);
    Number sum = 0, squares = 0, correction = 0;
    slice.for_each_column([&](int column) { sum += number_of_element<Number>(x.at(column)); });
    Number mean = Slice<C>::sum(sum) / count;
    slice.for_each_column([&](int column) {
      const Number distance = number_of_element<Number>(x.at(column)) - mean;
      squares = multiply_add(distance, distance, squares);
      correction += distance;  // the mean is rounded
    });
    squares = Slice<C>::sum(squares);
    correction = Slice<C>::sum(correction) / count;
    if (slice.down != 0 || !slice.exists) return;
    Number* to = static_cast<Number*>(args.partial) +
                 (static_cast<i64>(slice.row) * args.slices + blockIdx.y) * 3;
    to[0] = mean;
    to[1] = correction;
    to[2] = squares - count * correction * correction;
  }

  /// A row's statistics of all its slices', in f64: there are few. Grid ceil(rows / kRowThreads).
  HEDDLE_DEVICE static void statistics(const ChannelNormArguments& args) {
    ptx::grid_dependency_wait();
    const int row = row_of_thread();
    if (row >= args.rows) return;
    const Number* from =
        static_cast<const Number*>(args.partial) + static_cast<i64>(row) * args.slices * 3;
    double mean = 0, squares = 0, seen = 0, sum = 0;
    for (int n = 0; n < args.slices; ++n) {
      const int first = n * args.slice_columns;
      const double count = min_of(args.columns - first, args.slice_columns);
      // Around an infinite mean no distances correct it.
      const double correction = from[3 * n + 1];
      const double of_slice =
          static_cast<double>(from[3 * n]) + (correction == correction ? correction : 0);
      const double apart = of_slice - mean;
      squares +=
          static_cast<double>(from[3 * n + 2]) + apart * apart * seen * count / (seen + count);
      mean += apart * count / (seen + count);
      seen += count;
      sum += of_slice * count;
    }
    if (!(mean == mean)) mean = sum / seen;  // a step from an infinity is none
    const double variance = squares > 0 ? squares / seen : squares == squares ? 0 : squares;
    const double epsilon = number_at(args.epsilon, args.epsilon_operand, args.epsilon_is_64_bit);
    const double inverse = 1 / sqrt(variance + epsilon);
    Number* to = static_cast<Number*>(args.statistics) + static_cast<i64>(row) * 3;
    to[0] = static_cast<Number>(mean);
    to[1] = static_cast<Number>(inverse);
    to[2] = static_cast<Number>((to[0] - mean) * inverse);
    if (args.mean.data != nullptr)
      set_element(row_of<C, typename C::Mean>(args.extents, args.mean, row), mean);
    if (args.inv_rms.data != nullptr)
      set_element(row_of<C, typename C::Statistic>(args.extents, args.inv_rms, row), inverse);
    if constexpr (C::kRunningStatistics) {
      const double momentum =
          number_at(args.momentum, args.momentum_operand, args.momentum_is_64_bit);
      const double running = number_of_element<double>(
          row_of<C, const typename C::Running>(args.extents, args.running_mean, row));
      const double running_var = number_of_element<double>(
          row_of<C, const typename C::RunningVar>(args.extents, args.running_var, row));
      const double unbiased = seen > 1 ? variance * seen / (seen - 1) : variance;
      set_element(row_of<C, typename C::Next>(args.extents, args.next_mean, row),
                  (1 - momentum) * running + momentum * mean);
      set_element(row_of<C, typename C::NextVar>(args.extents, args.next_var, row),
                  (1 - momentum) * running_var + momentum * unbiased);
    }
  }

  HEDDLE_DEVICE static void apply(const ChannelNormArguments& args) {
    ptx::grid_dependency_wait();
    const Slice<C> slice(args);
    const Number* of_row =
        static_cast<const Number*>(args.statistics) + static_cast<i64>(slice.row) * 3;
    const Number mean = of_row[0], inverse = of_row[1], shift = of_row[2];
    const Number weight = number_of_element<Number>(
        row_of<C, const typename C::W>(args.extents, args.weight, slice.row));
    Number bias = 0;
    if constexpr (C::kBias)
      bias = number_of_element<Number>(
          row_of<C, const typename C::B>(args.extents, args.bias, slice.row));
    const Row<C, const typename C::X> x(args.extents, args.x, slice.row);
    const Row<C, typename C::Y> y(args.extents, args.y, slice.row);
    slice.for_each_column([&](int column) {
      const Number x_hat =
          multiply_add(number_of_element<Number>(x.at(column)) - mean, inverse, shift);
      set_element(y.at(column), multiply_add(x_hat, weight, bias));
    });
  }
};

template <class Config>
struct ChannelNormBackward {
  using C = Config;
  using Number = typename C::Number;

  struct Given {
    Number mean, inverse;
    HEDDLE_DEVICE Given(const ChannelNormBackwardArguments& args, int row)
        : mean(number_of_element<Number>(
              row_of<C, const typename C::Mean>(args.extents, args.mean, row))),
          inverse(number_of_element<Number>(
              row_of<C, const typename C::Statistic>(args.extents, args.inv_rms, row))) {}
    HEDDLE_DEVICE Number x_hat(Number x) const { return (x - mean) * inverse; }
  };

  /// A slice's sums of dy xhat and of dy.
  HEDDLE_DEVICE static void slices(const ChannelNormBackwardArguments& args) {
    ptx::grid_dependency_wait();
    const Slice<C> slice(args);
    const Given given(args, slice.row);
    const Row<C, const typename C::X> x(args.extents, args.x, slice.row);
    const Row<C, const typename C::Dy> dy(args.extents, args.dy, slice.row);
    Number along = 0, gradient = 0;
    slice.for_each_column([&](int column) {
      const Number g = number_of_element<Number>(dy.at(column));
      along = multiply_add(g, given.x_hat(number_of_element<Number>(x.at(column))), along);
      gradient += g;
    });
    along = Slice<C>::sum(along);
    gradient = Slice<C>::sum(gradient);
    if (slice.down != 0 || !slice.exists) return;
    Number* to = static_cast<Number*>(args.partial) +
                 (static_cast<i64>(slice.row) * args.slices + blockIdx.y) * 2;
    to[0] = along;
    to[1] = gradient;
  }

  /// A row's sums, and of the rows that share a channel the gradients of weight and bias, in f64:
  /// there are few. A thread has a channel: grid ceil(channels / kRowThreads).
  HEDDLE_DEVICE static void combine(const ChannelNormBackwardArguments& args) {
    ptx::grid_dependency_wait();
    const int channel = row_of_thread();
    if (channel >= args.channels) return;
    double d_weight = 0, d_bias = 0;
    for (int row = channel; row < args.rows; row += args.channels) {
      const Number* from =
          static_cast<const Number*>(args.partial) + static_cast<i64>(row) * args.slices * 2;
      double along = 0, gradient = 0;
      for (int n = 0; n < args.slices; ++n) {
        along += from[2 * n];
        gradient += from[2 * n + 1];
      }
      Number* to = static_cast<Number*>(args.sums) + static_cast<i64>(row) * 2;
      to[0] = static_cast<Number>(along / args.columns);
      to[1] = static_cast<Number>(gradient / args.columns);
      d_weight += along;
      d_bias += gradient;
    }
    if (args.d_weight.data != nullptr)
      set_element(row_of<C, typename C::DWeight>(args.extents, args.d_weight, channel), d_weight);
    if (args.d_bias.data != nullptr)
      set_element(row_of<C, typename C::DBias>(args.extents, args.d_bias, channel), d_bias);
  }

  HEDDLE_DEVICE static void apply(const ChannelNormBackwardArguments& args) {
    ptx::grid_dependency_wait();
    const Slice<C> slice(args);
    const Given given(args, slice.row);
    const Number* means = static_cast<const Number*>(args.sums) + static_cast<i64>(slice.row) * 2;
    const Number along = means[0], gradient = means[1];
    const Number slope = given.inverse * number_of_element<Number>(row_of<C, const typename C::W>(
                                             args.extents, args.weight, slice.row));
    const Row<C, const typename C::X> x(args.extents, args.x, slice.row);
    const Row<C, const typename C::Dy> dy(args.extents, args.dy, slice.row);
    const Row<C, typename C::Dx> dx(args.extents, args.dx, slice.row);
    slice.for_each_column([&](int column) {
      const Number g = number_of_element<Number>(dy.at(column)) - gradient;
      const Number x_hat = given.x_hat(number_of_element<Number>(x.at(column)));
      set_element(dx.at(column), slope * multiply_add(-x_hat, along, g));
    });
  }
};

}  // namespace heddle::streaming
