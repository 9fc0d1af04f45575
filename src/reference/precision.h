// How intermediate results are rounded while an op is evaluated.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "core/dtype.h"

namespace heddle::reference {

/// f64: the definition itself. Any other type: the naive program that keeps every intermediate
/// tensor (scores, probabilities, their gradients) in `type` and accumulates products in f32. Its
/// distance from the definition is what a fused kernel's error is measured against.
struct Precision {
  /// Not explicit: a type says which.
  Precision(DataType of = DataType::f64) : type(of) {}

  DataType type;
  /// Dot products are summed as Hopper's tensor cores sum those of fp8 operands.
  bool of_fp8_cores = false;

  bool is_exact() const { return type == DataType::f64; }
  /// An element of an intermediate tensor.
  double operator()(double x) const { return is_exact() ? x : round_to(type, x); }
  /// A partial sum or a row statistic.
  double accumulated(double x) const { return is_exact() ? x : static_cast<float>(x); }
  /// A partial sum of fp8 tensor cores, of kFp8Terms products more: 13 bits behind the point are
  /// left of it, whatever else an f32 would hold. (Measured: row statistics of Hopper's forward are
  /// 2^-13 to 2^-12 of the largest score off.)
  static constexpr int64_t kFp8Terms = 32;
  static double cut_by_fp8_cores(double x) {
    int exponent = 0;
    const double fraction = std::frexp(x, &exponent);
    return std::ldexp(std::trunc(std::ldexp(fraction, 14)), exponent - 14);
  }

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
  if (precision.of_fp8_cores) {
    double sum = 0;
    for (int64_t first = 0; first < n; first += Precision::kFp8Terms) {
      for (int64_t d = first; d < std::min(first + Precision::kFp8Terms, n); ++d)
        sum += a[d] * b[d];
      sum = Precision::cut_by_fp8_cores(sum);
    }
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
