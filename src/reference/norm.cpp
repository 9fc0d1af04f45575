#include <cmath>
#include <type_traits>

#include "reference/ops.h"

namespace heddle::reference {

using graph::kNone;
using graph::TensorId;

namespace {

/// X as rows of normalised elements: `element(r, c)` is the row-major index in X, `of_scale(r, c)`
/// that in scale.
struct Rows {
  int64_t count = 1, width = 1;
  std::vector<int64_t> row_start, column_offset;
  std::vector<int64_t> scale_index;  ///< of each element of X

  template <class Norm>
  Rows(const Norm& op, const Values& values) {
    const Dims &x = values.tensor(op.x).dims, &scale = values.tensor(op.scale).dims;
    const int64_t total = element_count(x).value_or(0);
    for (int64_t index = 0; index < total; ++index) {
      int64_t rest = index, in_scale = 0, scale_stride = 1;
      bool starts_row = true, in_first_row = true;
      for (int axis = x.rank() - 1; axis >= 0; --axis) {
        const int64_t i = rest % x[axis];
        rest /= x[axis];
        if (i != 0) (is_normalised(op, scale, axis) ? starts_row : in_first_row) = false;
        if (scale[axis] != 1) in_scale += i * scale_stride;
        scale_stride *= scale[axis];
      }
      if (starts_row) row_start.push_back(index);
      if (in_first_row) column_offset.push_back(index);
      scale_index.push_back(in_scale);
    }
    count = static_cast<int64_t>(row_start.size());
    width = static_cast<int64_t>(column_offset.size());
  }
  int64_t of_scale(int64_t row, int64_t column) const {
    return scale_index[static_cast<size_t>(element(row, column))];
  }
  int64_t element(int64_t row, int64_t column) const {
    return row_start[static_cast<size_t>(row)] + column_offset[static_cast<size_t>(column)];
  }
};

/// What is normalised: x, or the sum of it and a residual.
template <class Norm>
double read_x(const Norm& op, const Values& values, const Rows& rows, int64_t r, int64_t c) {
  const int64_t element = rows.element(r, c);
  double sum = values.read_linear(op.x, element);
  if constexpr (requires { op.residual; }) {
    if (op.residual != kNone)
      sum = values.precision().accumulated(sum + values.read_linear(op.residual, element));
    if (op.residual_bias != kNone)
      sum = values.precision().accumulated(sum + values.read_linear(op.residual_bias, c));
  }
  return sum;
}

/// A row's mean, by which rms_norm moves nothing.
template <class Norm>
double mean_of(const Norm& op, const Values& values, const Rows& rows, int64_t r) {
  const Precision round = values.precision();
  double sum = 0;
  if constexpr (requires { op.mean; }) {
    for (int64_t c = 0; c < rows.width; ++c)
      sum = round.accumulated(sum + read_x(op, values, rows, r, c));
  }
  return round.accumulated(sum / static_cast<double>(rows.width));
}

/// The running statistics after those of a row.
void update_running(const graph::BatchNorm& op, Values& values, int64_t r, double mean,
                    double variance, int64_t width) {
  if (op.momentum == kNone) return;
  const double momentum = values.read_linear(op.momentum, 0);
  const auto n = static_cast<double>(width);
  const double unbiased = width > 1 ? variance * n / (n - 1) : variance;
  const auto moved = [&](TensorId from, double to) {
    return (1 - momentum) * values.read_linear(from, r) + momentum * to;
  };
  values.write_linear(op.next_mean, moved(op.running_mean, mean), r);
  values.write_linear(op.next_var, moved(op.running_var, unbiased), r);
}

template <class Norm>
void norm(const Norm& op, Values& values) {
  const Rows rows(op, values);
  const Precision round = values.precision();
  const double epsilon = values.read_linear(op.epsilon, 0);
  for (int64_t r = 0; r < rows.count; ++r) {
    const double mean = mean_of(op, values, rows, r);
    double squares = 0;
    for (int64_t c = 0; c < rows.width; ++c) {
      const double x = round.accumulated(read_x(op, values, rows, r, c) - mean);
      squares = round.accumulated(squares + x * x);
    }
    const double variance = squares / static_cast<double>(rows.width);
    const double inverse = round.accumulated(1 / std::sqrt(variance + epsilon));
    if constexpr (std::is_same_v<Norm, graph::BatchNorm>)
      update_running(op, values, r, mean, variance, rows.width);
    if constexpr (requires { op.mean; }) values.write_linear(op.mean, mean, r);
    values.write_linear(op.inv_variance, inverse, r);
    for (int64_t c = 0; c < rows.width; ++c) {
      const double x = round.accumulated(read_x(op, values, rows, r, c) - mean);
      const double x_hat = round(x * inverse);
      const int64_t at = rows.of_scale(r, c);
      const double bias = op.bias != kNone ? values.read_linear(op.bias, at) : 0;
      const double y = round(values.read_linear(op.scale, at) * x_hat) + bias;
      values.write_linear(op.y, y, rows.element(r, c));
      if constexpr (requires { op.sum; })
        values.write_linear(op.sum, read_x(op, values, rows, r, c), rows.element(r, c));
    }
  }
}

template <class NormBackward>
void norm_backward(const NormBackward& op, Values& values) {
  const Rows rows(op, values);
  const Precision round = values.precision();
  const auto width = static_cast<double>(rows.width);
  const int64_t scales = element_count(values.tensor(op.scale).dims).value_or(0);
  std::vector<double> d_scale(static_cast<size_t>(scales)), d_bias(d_scale);
  std::vector<double> x_hat(static_cast<size_t>(rows.width)), g(x_hat);
  for (int64_t r = 0; r < rows.count; ++r) {
    constexpr bool kCentred = requires { op.mean; };
    double row_mean = 0;
    if constexpr (kCentred) row_mean = values.read_linear(op.mean, r);
    const double inverse = values.read_linear(op.inv_variance, r);
    double along = 0, mean = 0;  // means of g x_hat and of g
    for (int64_t c = 0; c < rows.width; ++c) {
      const double dy = values.read_linear(op.dy, rows.element(r, c));
      const double x = round.accumulated(values.read_linear(op.x, rows.element(r, c)) - row_mean);
      x_hat[c] = round(x * inverse);
      const int64_t at = rows.of_scale(r, c);
      g[c] = round(dy * values.read_linear(op.scale, at));
      along = round.accumulated(along + g[c] * x_hat[c] / width);
      if constexpr (kCentred) mean = round.accumulated(mean + g[c] / width);
      d_scale[at] = round.accumulated(d_scale[at] + dy * x_hat[c]);
      d_bias[at] = round.accumulated(d_bias[at] + dy);
    }
    for (int64_t c = 0; c < rows.width; ++c) {
      const double dx = inverse * (g[c] - mean - round(x_hat[c] * along));
      values.write_linear(op.dx, dx, rows.element(r, c));
    }
  }
  for (int64_t at = 0; at < scales; ++at) {
    values.write_linear(op.d_scale, d_scale[at], at);
    values.write_linear(op.d_bias, d_bias[at], at);
  }
}

}  // namespace

void rms_norm(const graph::RmsNorm& op, Values& values) { norm(op, values); }
void rms_norm_backward(const graph::RmsNormBackward& op, Values& values) {
  norm_backward(op, values);
}
void layer_norm(const graph::LayerNorm& op, Values& values) { norm(op, values); }
void layer_norm_backward(const graph::LayerNormBackward& op, Values& values) {
  norm_backward(op, values);
}
void instance_norm(const graph::InstanceNorm& op, Values& values) { norm(op, values); }
void instance_norm_backward(const graph::InstanceNormBackward& op, Values& values) {
  norm_backward(op, values);
}
void batch_norm(const graph::BatchNorm& op, Values& values) { norm(op, values); }
void batch_norm_backward(const graph::BatchNormBackward& op, Values& values) {
  norm_backward(op, values);
}

}  // namespace heddle::reference
