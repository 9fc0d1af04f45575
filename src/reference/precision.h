// How intermediate results are rounded while an op is evaluated.
#pragma once

#include <vector>

#include "core/dtype.h"

namespace heddle::reference {

/// f64: the definition itself. Any other type: the naive program that keeps every intermediate
/// tensor (scores, probabilities, their gradients) in `type` and accumulates products in f32. Its
/// distance from the definition is what a fused kernel's error is measured against.
struct Precision {
  DataType type = DataType::f64;

  bool is_exact() const { return type == DataType::f64; }
  /// An element of an intermediate tensor.
  double operator()(double x) const { return is_exact() ? x : round_to(type, x); }
  /// A partial sum or a row statistic.
  double accumulated(double x) const { return is_exact() ? x : static_cast<float>(x); }

  static double round_to(DataType type, double x) {
    if (type == DataType::f64) return x;
    if (type == DataType::f32) return static_cast<float>(x);
    uint64_t bits = 0;
    store(type, &bits, 0, x);
    return load(type, &bits, 0);
  }
};

/// A matrix of f64, rows x columns.
struct Matrix {
  Matrix(int64_t rows, int64_t columns, double fill = 0)
      : rows(rows), columns(columns), values(static_cast<size_t>(rows * columns), fill) {}
  double& operator()(int64_t i, int64_t j) { return values[static_cast<size_t>(i * columns + j)]; }
  double operator()(int64_t i, int64_t j) const {
    return values[static_cast<size_t>(i * columns + j)];
  }
  double* row(int64_t i) { return values.data() + i * columns; }
  const double* row(int64_t i) const { return values.data() + i * columns; }

  int64_t rows, columns;
  std::vector<double> values;
};

/// sum_d a[d] b[d].
inline double dot(const double* a, const double* b, int64_t n, Precision precision) {
  if (precision.is_exact()) {
    double sum = 0;
    for (int64_t d = 0; d < n; ++d) sum += a[d] * b[d];
    return sum;
  }
  float sum = 0;
  for (int64_t d = 0; d < n; ++d) sum += static_cast<float>(a[d]) * static_cast<float>(b[d]);
  return sum;
}

/// to[d] += factor * from[d].
inline void add_multiple(double* to, double factor, const double* from, int64_t n,
                         Precision precision) {
  // A loop of each kind, so that the compiler adds several elements at a time.
  if (precision.is_exact()) {
    for (int64_t d = 0; d < n; ++d) to[d] += factor * from[d];
  } else {
    for (int64_t d = 0; d < n; ++d) to[d] = static_cast<float>(to[d] + factor * from[d]);
  }
}

}  // namespace heddle::reference
