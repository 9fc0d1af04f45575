// The softmax of one row of a tile, and what becomes of a row in the end.
#pragma once

#include "engine/cpu/kernels/dropout.h"

namespace heddle::engine::cpu::HEDDLE_CPU_LEVEL {

/// Units of the scores a pass keeps: natural score = to_natural * score. Where the score is the dot
/// itself its positive scale is folded in here.
struct ScoreUnits {
  bool raw;  ///< scores are unscaled dots
  double to_natural;
};

inline ScoreUnits units_of(const AttentionArguments& a) {
  const double to_natural = a.log2_input ? kLn2 : 1;
  // A scale of 0 or below would turn the running maximum of dots into the wrong one, and one close
  // to 0 has no reciprocal.
  if (a.score.is_identity && a.scale > 1e-30) return {true, a.scale * to_natural};
  return {false, to_natural};
}

inline void scale_cells(const ScoreCells& cells, double factor, Real* scores) {
  const SplitFactor f = split(factor);
  for (int64_t j = cells.first; j < cells.last; j += kLanes)
    store(scores + j, product(load(scores + j), f));
}

/// Turns the raw dots of a row into scores, -inf where the row does not see the key.
inline void score_row(const AttentionArguments& a, const ScoreUnits& units, const ScoreCells& cells,
                      Interval visible, const ScoreScratch& scratch, Real* dots) {
  if (!units.raw) scale_cells(cells, a.scale, dots);
  if (!a.score.is_identity) {
    const ScoreValue score = evaluate(a.score, cells, dots, nullptr, scratch, dots);
    for (int64_t j = cells.first; score.strip != dots && j < cells.last; j += kLanes)
      store(dots + j, value_at(score, j));
  }
  hide_invisible(a, visible, cells.b, cells.h, cells.row, cells.j0, cells.first, cells.last, dots);
}

inline Real max_of(const Real* x, int64_t first, int64_t last) {
  Float m0 = all(-kInfinity), m1 = m0;
  int64_t j = first;
  for (; j + 2 * kLanes <= last; j += 2 * kLanes) {
    m0 = max(m0, load(x + j));
    m1 = max(m1, load(x + j + kLanes));
  }
  if (j < last) m0 = max(m0, load(x + j));
  return max_of_lanes(max(m0, m1));
}

/// x[j] = e^((x[j] - max) * to_natural), and their sum.
inline Real exponentiate(Real* x, int64_t first, int64_t last, Real max, double to_natural) {
  const Float shift = all(max == -kInfinity ? 0 : max);
  const SplitFactor unit = power_unit(to_natural);
  const auto power = [&](int64_t j) {
    const Float p = exp_of_product(subtract(load(x + j), shift), unit);
    store(x + j, p);
    return p;
  };
  Float s0 = zero(), s1 = zero();
  int64_t j = first;
  for (; j + 2 * kLanes <= last; j += 2 * kLanes) {
    s0 = add(s0, power(j));
    s1 = add(s1, power(j + kLanes));
  }
  if (j < last) s0 = add(s0, power(j));
  return sum_of_lanes(add(s0, s1));
}

/// A row's maximum and sum, in natural units, once the sink has joined them; and the factor that
/// its output sum is still to be multiplied by.
struct RowResult {
  Real max, sum, stats, output_factor;
};

inline RowResult finish_row(const AttentionArguments& a, Real max, Real sum, double to_natural,
                            int64_t h) {
  Real m = max == -kInfinity ? max : product(max, to_natural);
  if (sum != sum) m = sum;  // maxima pass over a NaN
  Real factor = 1;
  if (a.sink) {
    const Real sink = number_at(*a.sink, h * a.sink->stride[1]);
    if (sink != sink) return {sink, sink, sink, sink};  // as a NaN among the scores is
    if (m == -kInfinity && sum == 0) {
      const Real stats = a.stats_log2 ? static_cast<Real>(sink * kLog2E) : sink;
      if (sink == -kInfinity) return {sink, 0, sink, 0};
      return {sink, 1, stats, 0};
    }
    const Real joined = sink > m ? sink : m;
    factor = libm::exp(m - joined);
    sum = sum * factor + libm::exp(sink - joined);
    m = joined;
  }
  if (m == -kInfinity && sum == 0) return {m, 0, m, 0};  // a NaN in the sum goes on to the output
  const Real stats = m + libm::log(sum);
  return {m, sum, a.stats_log2 ? static_cast<Real>(stats * kLog2E) : stats, factor / sum};
}

inline void write_statistic(const View* v, int64_t b, int64_t h, int64_t i, Real value) {
  if (v) write_number_at(v->element, row_address(*v, b, h, i), value);
}

/// Rows at or past the query length: zeros and -inf where the tensor is dense, nothing where
/// ragged.
inline void write_padding_row(const AttentionArguments& a, int64_t b, int64_t h, int64_t i) {
  if (!a.o->ragged) write_row_of(*a.o, b, h, i, 0);
  if (a.stats && !a.stats->ragged) write_statistic(a.stats, b, h, i, -kInfinity);
  if (a.max && !a.max->ragged) write_statistic(a.max, b, h, i, -kInfinity);
  if (a.sum_exp && !a.sum_exp->ragged) write_statistic(a.sum_exp, b, h, i, 0);
}

inline void write_result(const AttentionArguments& a, int64_t b, int64_t h, int64_t i,
                         const RowResult& row, Real* output) {
  // 0 times an infinite value is not 0.
  if (row.output_factor == 0) fill(output, a.v_dim, 0);
  write_row(*a.o, b, h, i, output, row.output_factor);
  write_statistic(a.stats, b, h, i, row.stats);
  write_statistic(a.max, b, h, i, row.max);
  write_statistic(a.sum_exp, b, h, i, row.sum);
}

}  // namespace heddle::engine::cpu::HEDDLE_CPU_LEVEL
