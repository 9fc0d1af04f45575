// One tile of the backward pass, rows of one query head against one block of keys: P recomputed
// from the row's statistics and dL/d(score), cell by cell. What is then done with them differs:
// backward.cpp makes dQ, dK and dV, load_gradient.cpp the gradients of operands that the score
// loads.
//
//   P = exp(S - max) / sum_exp  or  exp(S - stats)
//   dP = dO V^T,  dS = P (keep * dP - D),  D = rowsum(dO * O)
#pragma once

#include "core/lost_weights.h"
#include "engine/cpu/kernels/pack.h"
#include "engine/cpu/kernels/softmax.h"

namespace heddle::engine::cpu::HEDDLE_CPU_LEVEL {

/// Pitch of P and dS: off the power of two, so that rows fall into different cache sets.
inline constexpr int64_t kCellPitch = kBackwardKeys + 16;
inline constexpr int64_t kBackwardPanels = kBackwardRows / kPanelRows;

/// P = e^(score - shift) * weight, scores in natural units; a shift of -inf: P = 0.
struct RowStatistics {
  float shift, weight;
};

/// What the forward pass left of a row: the maximum and the sum, or the log-sum-exp.
inline RowStatistics statistics_of(const AttentionArguments& a, int64_t b, int64_t h, int64_t i) {
  const auto read = [&](const View& v) {
    return *reinterpret_cast<const float*>(row_address(v, b, h, i));
  };
  if (!a.stats) return {read(*a.max), 1 / read(*a.sum_exp)};
  const float stats = a.stats_log2 ? static_cast<float>(read(*a.stats) * kLn2) : read(*a.stats);
  if (!a.score.is_identity && weights_are_lost(stats)) return {-kInfinity, 0};
  return {stats, stats == stats ? 1 : stats};  // a NaN goes on to the gradients
}

struct BackwardTile {
  // The block of keys, packed into words.
  float *k_columns, *v_columns;  ///< transposed, for Q K^T and dO V^T
  float* k_rows;                 ///< for dS K
  float *d_k, *d_v;              ///< sums, [kBackwardKeys, dim rounded up to a panel]
  // The tile of rows.
  float *q, *d_o;            ///< words, by rows
  float *q_rows, *d_o_rows;  ///< words along rows, what dK and dV sum over; q, d_o with Singles
  float *p, *d_s;            ///< [kBackwardRows, kCellPitch]
  /// The same as words along rows (p_rows, d_s_rows) and along keys (d_s_keys).
  float *p_rows, *d_s_rows, *d_s_keys;
  float* row_dot;
  RowStatistics* statistics;
  Interval* visible;
  Interval computed[kBackwardPanels];  ///< columns of each panel that hold cells; zero outside
  // One row at a time.
  float *factors, *dots;
  float* staging;
  float* spill;  ///< a panel of dQ whose last rows are not there
  ScoreRoom room;
  float* sum;                    ///< a tile of a load's gradient
  int64_t q_pitch, o_pitch;      ///< of q, d_o
  int64_t q_columns, o_columns;  ///< dims rounded up to a panel: pitches of d_k, d_v, dQ
};

template <class Arithmetic>
inline BackwardTile carve(const BackwardPass& pass, Scratch& scratch) {
  const AttentionArguments& a = pass.a;
  BackwardTile t;
  t.q_columns = round_up(a.qk_dim, kPanelColumns);
  t.o_columns = round_up(a.v_dim, kPanelColumns);
  constexpr bool kPairs = Arithmetic::kPack == 2;
  const int64_t q_words = words_of<Arithmetic>(a.qk_dim), o_words = words_of<Arithmetic>(a.v_dim);
  // Off the power of two, so that rows fall into different cache sets.
  t.q_pitch = round_up(q_words, kPanelColumns) + 16;
  t.o_pitch = round_up(o_words, kPanelColumns) + 16;
  t.k_columns = scratch.take<float>(kBackwardKeys * q_words);
  t.v_columns = scratch.take<float>(kBackwardKeys * o_words);
  t.k_rows = scratch.take<float>(words_of<Arithmetic>(kBackwardKeys) * t.q_columns);
  t.d_k = scratch.take<float>(kBackwardKeys * t.q_columns);
  t.d_v = scratch.take<float>(kBackwardKeys * t.o_columns);
  t.q = scratch.take<float>(kBackwardRows * t.q_pitch);
  t.d_o = scratch.take<float>(kBackwardRows * t.o_pitch);
  t.p = scratch.take<float>(kBackwardRows * kCellPitch);
  t.d_s = scratch.take<float>(kBackwardRows * kCellPitch);
  const int64_t pair_rows = kPairs ? kBackwardRows / 2 : 0;
  t.q_rows = kPairs ? scratch.take<float>(pair_rows * t.q_columns) : t.q;
  t.d_o_rows = kPairs ? scratch.take<float>(pair_rows * t.o_columns) : t.d_o;
  t.p_rows = kPairs ? scratch.take<float>(pair_rows * kCellPitch) : t.p;
  t.d_s_rows = kPairs ? scratch.take<float>(pair_rows * kCellPitch) : t.d_s;
  t.d_s_keys = kPairs ? scratch.take<float>(pair_rows * kCellPitch) : t.d_s;
  t.row_dot = scratch.take<float>(kBackwardRows);
  t.statistics = scratch.take<RowStatistics>(kBackwardRows);
  t.visible = scratch.take<Interval>(kBackwardRows);
  t.factors = scratch.take<float>(kBackwardKeys);
  t.dots = scratch.take<float>(kBackwardKeys);
  t.staging = scratch.take<float>(staging_words(larger(a.qk_dim, a.v_dim)));
  t.spill = scratch.take<float>(kPanelRows * t.q_columns);
  t.sum = scratch.take<float>(pass.sums_loads ? kBackwardRows * kCellPitch : 0);
  t.room = score_room(scratch, pass.longest_score, kBackwardKeys);
  return t;
}

struct TilePlace {
  int64_t b, h, i0, rows, j0, keys;
  Lengths lengths;
};

/// Reads the tile's rows. False if none of them sees a key of the block.
template <class Arithmetic>
inline bool load_rows(const BackwardPass& pass, const TilePlace& at, BackwardTile& t) {
  const AttentionArguments& a = pass.a;
  bool any = false;
  for (int64_t panel = 0; panel < at.rows; panel += kPanelRows) {
    Interval seen{kBackwardKeys, 0};
    for (int64_t r = panel; r < smaller(panel + kPanelRows, at.rows); ++r) {
      const Interval keys = visible_keys(a, at.lengths, at.b, at.i0 + r);
      t.visible[r] = keys;
      const Interval here = columns_of_row(a, keys, at.b, at.h, at.i0 + r, at.j0, at.keys);
      if (here.lo < here.hi) seen = {smaller(seen.lo, here.lo), larger(seen.hi, here.hi)};
    }
    Interval& computed = t.computed[panel / kPanelRows];
    computed = {0, 0};
    if (seen.lo >= seen.hi) continue;
    computed = {seen.lo / kPanelColumns * kPanelColumns, round_up(seen.hi, kLanes)};
    any = true;
  }
  if (!any) return false;
  copy_rows<Arithmetic>({a.q, at.b, at.h, at.i0, at.rows}, a.qk_dim, at.rows, t.q, t.q_pitch);
  copy_rows<Arithmetic>({pass.d_o, at.b, at.h, at.i0, at.rows}, a.v_dim, at.rows, t.d_o, t.o_pitch);
  for (int64_t r = 0; r < at.rows; ++r) {
    t.statistics[r] = statistics_of(a, at.b, at.h, at.i0 + r);
    t.row_dot[r] = pass.row_dot[(at.b * a.q_heads + at.h) * a.q_length + at.i0 + r];
    if (t.statistics[r].shift == -kInfinity) {  // saw nothing: whatever its dO holds goes nowhere
      fill(t.q + r * t.q_pitch, t.q_pitch - 16, 0);
      fill(t.d_o + r * t.o_pitch, t.o_pitch - 16, 0);
    }
  }
  return true;
}

/// One row: raw dots become probabilities, dP becomes dL/d(score).
inline void differentiate_row(const BackwardPass& pass, const ScoreUnits& units,
                              const ScoreCells& cells, const BackwardTile& t, int64_t r, float* p,
                              float* d_s) {
  const AttentionArguments& a = pass.a;
  const auto [shift, weight] = t.statistics[r];
  if (shift == -kInfinity) {
    fill(p + cells.first, cells.last - cells.first, 0);
    fill(d_s + cells.first, cells.last - cells.first, 0);
    if (a.dropout.kind != DropoutKind::none)
      fill(t.factors + cells.first, cells.last - cells.first, 0);
    return;
  }
  if (pass.keeps_dots) {
    const SplitFactor scale = split(a.scale);
    for (int64_t j = cells.first; j < cells.last; j += kLanes)
      store(t.dots + j, product(load(p + j), scale));
  }
  score_row(a, units, cells, t.visible[r], t.room, p);
  const bool drops = a.dropout.kind != DropoutKind::none;
  if (drops) dropout_factors(a.dropout, a.q_heads, cells, t.factors);
  const SplitFactor to_natural = split(units.to_natural), log2_e = split(kLog2E);
  const Float shifts = all(shift), weights = all(weight), row_dot = all(t.row_dot[r]);
  const Float unit = all(a.log2_input ? static_cast<float>(kLn2) : 1.0f);
  for (int64_t j = cells.first; j < cells.last; j += kLanes) {
    const Float probability =
        multiply(exp_of_difference(load(p + j), to_natural, shifts, log2_e), weights);
    Float d_p = load(d_s + j);
    if (drops) d_p = multiply(d_p, load(t.factors + j));
    const Float gradient = multiply(multiply(probability, unit), subtract(d_p, row_dot));
    store(p + j, probability);
    // Where P is 0 the key may be hidden, and dP then is whatever a key out of sight makes it.
    store(d_s + j, select(equal(probability, zero()), zero(), gradient));
  }
}

/// P and dL/d(score) of the tile; then finish(r, cells, p, d_s) for each of its rows. Both are zero
/// in [0, width) wherever they were not computed.
template <class Arithmetic, class Finish>
inline void differentiate_tile(const BackwardPass& pass, const TilePlace& at, BackwardTile& t,
                               Finish finish) {
  const AttentionArguments& a = pass.a;
  const int64_t q_words = words_of<Arithmetic>(a.qk_dim), o_words = words_of<Arithmetic>(a.v_dim);
  const ScoreUnits units = units_of(a);
  const int64_t width = round_up(at.keys, kPanelColumns) > round_up(at.keys, kPanelRows)
                            ? round_up(at.keys, kPanelColumns)
                            : round_up(at.keys, kPanelRows);
  for (int64_t panel = 0; panel < at.rows; panel += kPanelRows) {
    const int rows = static_cast<int>(smaller(kPanelRows, at.rows - panel));
    const Interval columns = t.computed[panel / kPanelRows];
    float *p = t.p + panel * kCellPitch, *d_s = t.d_s + panel * kCellPitch;
    for (int64_t j = columns.lo; j < columns.hi; j += kPanelColumns) {
      const int wide = static_cast<int>(columns.hi - j);
      multiply_panel<Arithmetic, Lies::by_rows, Into::overwrite>(
          rows, wide, t.q + panel * t.q_pitch, t.q_pitch, t.k_columns + j * q_words, kPanelColumns,
          p + j, kCellPitch, q_words);
      multiply_panel<Arithmetic, Lies::by_rows, Into::overwrite>(
          rows, wide, t.d_o + panel * t.o_pitch, t.o_pitch, t.v_columns + j * o_words,
          kPanelColumns, d_s + j, kCellPitch, o_words);
    }
    for (int r = 0; r < kPanelRows; ++r, p += kCellPitch, d_s += kCellPitch) {
      const Interval filled = r < rows ? columns : Interval{0, 0};
      fill(p, filled.lo, 0);
      fill(d_s, filled.lo, 0);
      fill(p + filled.hi, width - filled.hi, 0);
      fill(d_s + filled.hi, width - filled.hi, 0);
      if (filled.lo >= filled.hi) continue;
      const ScoreCells cells{at.b,  at.h,      at.i0 + panel + r, at.lengths,
                             at.j0, filled.lo, filled.hi,         at.keys};
      differentiate_row(pass, units, cells, t, panel + r, p, d_s);
      finish(panel + r, cells, p, d_s);
    }
  }
}

}  // namespace heddle::engine::cpu::HEDDLE_CPU_LEVEL
