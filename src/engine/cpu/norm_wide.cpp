#include "engine/cpu/norm_wide.h"

#include <cmath>

#include "core/dtype.h"
#include "engine/cpu/long_sum.h"

namespace heddle::engine::cpu {

namespace {

/// Where a row of a tensor begins.
struct Row {
  const RowsView& view;
  int64_t origin = 0;

  Row(const RowsView& v, const RowSpace& space, int64_t row) : view(v) {
    for (int d = space.dims - 1; d >= 0; --d) {
      origin += row % space.extent[d] * v.stride[d];
      row /= space.extent[d];
    }
  }
  double operator[](int64_t i) const {
    return load(static_cast<DataType>(view.element), view.data, origin + i * view.column_stride);
  }
  void set(int64_t i, double value) const {
    if (!view.data) return;
    store(static_cast<DataType>(view.element), view.data, origin + i * view.column_stride, value);
  }
};

/// What is normalised: a row of x, or its sum with a residual.
struct Summed {
  const NormPass<double>& pass;
  Row x, residual;

  Summed(const NormPass<double>& p, int64_t r)
      : pass(p), x(p.x, p.rows, r), residual(p.residual, p.rows, r) {}
  double operator[](int64_t i) const {
    if (!pass.residual.data) return x[i];
    return x[i] + residual[i] + (pass.residual_bias ? pass.residual_bias[i] : 0);
  }
};

/// The mean of a row, and of what it leaves: that of equal numbers is their number.
double mean_of(const Summed& x, int64_t width) {
  LongSum sum, rest;
  for (int64_t i = 0; i < width; ++i) sum += x[i];
  const double mean = sum.value() / static_cast<double>(width);
  for (int64_t i = 0; i < width; ++i) rest += x[i] - mean;
  return with_lost(mean, rest.value() / static_cast<double>(width));
}

}  // namespace

void norm_rows_wide(const NormPass<double>& pass, RowRange rows) {
  const int64_t width = pass.rows.width;
  for (int64_t r = rows.first; r < rows.last; ++r) {
    const Summed x(pass, r);
    const Row sum(pass.sum, pass.rows, r), y(pass.y, pass.rows, r);
    const double mean = pass.centred ? mean_of(x, width) : 0;
    LongSum squares;
    for (int64_t i = 0; i < width; ++i) squares += (x[i] - mean) * (x[i] - mean);
    const double inverse =
        1 / std::sqrt(squares.value() / static_cast<double>(width) + pass.epsilon);
    Row(pass.mean, pass.rows, r).set(0, mean);
    Row(pass.inv_rms, pass.rows, r).set(0, inverse);
    for (int64_t i = 0; i < width; ++i) {
      const double summed = x[i];  // read before y is written, which may lie where x does
      sum.set(i, summed);
      y.set(i, (summed - mean) * inverse * pass.weight[i] + (pass.bias ? pass.bias[i] : 0));
    }
  }
}

void norm_backward_rows_wide(const NormBackwardPass<double>& pass, RowRange rows, int64_t chunk,
                             double* scratch) {
  const int64_t width = pass.rows.width, padded = (width + 15) / 16 * 16;
  double* const d_weight = pass.d_weight ? pass.d_weight + chunk * padded : nullptr;
  double* const d_bias = pass.d_bias ? pass.d_bias + chunk * padded : nullptr;
  double *const lost_weight = scratch, *const lost_bias = scratch + padded;
  for (double* sum : {d_weight, d_bias, lost_weight, lost_bias}) {
    for (int64_t i = 0; sum && i < padded; ++i) sum[i] = 0;
  }
  for (int64_t r = rows.first; r < rows.last; ++r) {
    const Row x(pass.x, pass.rows, r), dy(pass.dy, pass.rows, r), dx(pass.dx, pass.rows, r);
    const double inverse = Row(pass.inv_rms, pass.rows, r)[0];
    const double row_mean = pass.centred ? Row(pass.mean, pass.rows, r)[0] : 0;
    LongSum of_along, of_gradient;
    for (int64_t i = 0; i < width; ++i) {
      const double d = dy[i], x_hat = (x[i] - row_mean) * inverse, g = d * pass.weight[i];
      of_along += g * x_hat;
      if (pass.centred) of_gradient += g;
      if (d_weight) lost_weight[i] += add_to(d_weight[i], d * x_hat);
      if (d_bias) lost_bias[i] += add_to(d_bias[i], d);
    }
    const double along = of_along.value() / static_cast<double>(width);
    const double mean = of_gradient.value() / static_cast<double>(width);
    for (int64_t i = 0; i < width; ++i) {
      const double x_hat = (x[i] - row_mean) * inverse;
      dx.set(i, inverse * (dy[i] * pass.weight[i] - mean - x_hat * along));
    }
  }
  for (int64_t i = 0; i < width; ++i) {
    if (d_weight) d_weight[i] = with_lost(d_weight[i], lost_weight[i]);
    if (d_bias) d_bias[i] = with_lost(d_bias[i], lost_bias[i]);
  }
}

}  // namespace heddle::engine::cpu
