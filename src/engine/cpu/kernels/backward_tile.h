// One tile of the backward pass, rows of one query head against one block of keys: P recomputed
// from the row's statistics and dL/d(score), cell by cell. What is then done with them differs:
// backward.cpp makes dQ, dK and dV, load_gradient.cpp the gradients of operands that the score
// loads.
//
//   P = exp(S - max) / sum_exp  or  exp(S - stats)
//   dP = dO V^T,  dS = P (keep * dP - D),  D = rowsum(dO * O) - d_stats
#pragma once

#include "core/lost_weights.h"
#include "engine/cpu/kernels/few_rows.h"
#include "engine/cpu/kernels/pack.h"
#include "engine/cpu/kernels/softmax.h"

namespace heddle::engine::cpu::HEDDLE_CPU_LEVEL {

/// Pitch of P and dS.
inline constexpr int64_t kCellPitch = kBackwardKeys + kPitchGap;
/// Words that a key's pairs of rows are apart from the next key's, where Tiles read them.
inline constexpr int64_t kPairPitch =
    round_up(kBackwardRows, panel_rows(kShape, Products::tiles)) / 2 + kPitchGap;
/// Words from a plane of parts to the next: of pairs of rows (times their columns), of the cells of
/// p_rows and d_s_rows, and of those of d_s_keys.
inline constexpr int64_t kRowPlane =
    round_up(kBackwardRows, panel_rows(kShape, Products::tiles)) / 2;
inline constexpr int64_t kPairPlane = kBackwardKeys * kPairPitch;
inline constexpr int64_t kKeysPlane = kRowPlane * kCellPitch;
/// Of the arithmetic whose panels have the fewest rows.
inline constexpr int64_t kBackwardPanels = kBackwardRows / kPanelRows;

/// What the forward pass left of a row: the maximum and the sum, or the log-sum-exp.
inline RowStatistics statistics_of(const AttentionArguments& a, int64_t b, int64_t h, int64_t i) {
  const auto read = [&](const View& v) {
    return *reinterpret_cast<const Real*>(row_address(v, b, h, i));
  };
  if (!a.stats) return {read(*a.max), 1 / read(*a.sum_exp)};
  const Real stats = a.stats_log2 ? static_cast<Real>(read(*a.stats) * kLn2) : read(*a.stats);
  if (!a.score.is_identity && weights_are_lost(stats, kRealElement == Element::f64))
    return {-kInfinity, 0};
  return {stats, stats == stats ? 1 : stats};  // a NaN goes on to the gradients
}

inline int64_t query_row(const BackwardPass& pass, int64_t b, int64_t h, int64_t i) {
  return (b * pass.a.q_heads + h) * pass.a.q_length + i;
}

/// rowsum(dS) as it is in exact arithmetic.
inline Real sum_of_d_s(const BackwardPass& pass, int64_t b, int64_t h, int64_t i) {
  const AttentionArguments& a = pass.a;
  Real sum = pass.d_stats ? *reinterpret_cast<const Real*>(row_address(*pass.d_stats, b, h, i)) : 0;
  if (a.sink) {
    const auto [shift, weight] = statistics_of(a, b, h, i);
    const Real sink = number_at(*a.sink, h * a.sink->stride[1]);
    sum += libm::exp(sink - shift) * weight * pass.row_dot[query_row(pass, b, h, i)];
  }
  return a.log2_input ? static_cast<Real>(sum * kLn2) : sum;
}

struct BackwardTile {
  // The block of keys, packed into words.
  Real *k_columns, *v_columns;  ///< transposed, for Q K^T and dO V^T
  Real* k_rows;                 ///< for dS K
  Real *d_k, *d_v;              ///< sums, [kBackwardKeys, dim rounded up to a panel]
  // The tile of rows.
  Real *q, *d_o;            ///< words, by rows
  Real *q_rows, *d_o_rows;  ///< words along rows, what dK and dV sum over; q, d_o with Singles
  Real *p, *d_s;            ///< [kBackwardRows, kCellPitch]
  /// The same as words along rows (p_rows, d_s_rows), with Tiles those of a key side by side, and
  /// as words along keys (d_s_keys).
  Real *p_rows, *d_s_rows, *d_s_keys;
  Real *row_dot, *one_key_rest;
  RowStatistics* statistics;
  Interval* visible;
  Interval computed[kBackwardPanels];  ///< columns of each panel that hold cells; zero outside
  // One row at a time.
  Real *factors, *dots;
  Real* staging;
  Real* spill;  ///< a panel of dQ whose last rows are not there
  ScoreScratch scratch;
  Real* sum;                     ///< a tile of a load's gradient
  int64_t q_pitch, o_pitch;      ///< of q, d_o
  int64_t q_columns, o_columns;  ///< dims rounded up to a panel: pitches of d_k, d_v, dQ
};

inline BackwardTile tile_in(const BackwardScratch& at, void* memory) {
  char* const base = static_cast<char*>(memory);
  const auto floats = [&](int64_t offset) { return reinterpret_cast<Real*>(base + offset); };
  BackwardTile t;
  t.k_columns = floats(at.k_columns), t.v_columns = floats(at.v_columns);
  t.k_rows = floats(at.k_rows);
  t.d_k = floats(at.d_k), t.d_v = floats(at.d_v);
  t.q = floats(at.q), t.d_o = floats(at.d_o);
  t.q_rows = floats(at.q_rows), t.d_o_rows = floats(at.d_o_rows);
  t.p = floats(at.p), t.d_s = floats(at.d_s);
  t.p_rows = floats(at.p_rows), t.d_s_rows = floats(at.d_s_rows), t.d_s_keys = floats(at.d_s_keys);
  t.row_dot = floats(at.row_dot), t.one_key_rest = floats(at.one_key_rest);
  t.statistics = reinterpret_cast<RowStatistics*>(base + at.statistics);
  t.visible = reinterpret_cast<Interval*>(base + at.visible);
  t.factors = floats(at.factors), t.dots = floats(at.dots);
  t.staging = floats(at.staging), t.spill = floats(at.spill);
  t.scratch = {reinterpret_cast<ScoreValue*>(base + at.score_values), floats(at.score_strips),
               kBackwardKeys};
  t.sum = floats(at.sum);
  t.q_pitch = at.q_pitch, t.o_pitch = at.o_pitch;
  t.q_columns = at.q_columns, t.o_columns = at.o_columns;
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
  constexpr int64_t kPanelRows = Arithmetic::kPanelRows;
  bool any = false;
  for (int64_t panel = 0; panel < at.rows; panel += kPanelRows) {
    Interval seen{kBackwardKeys, 0};
    for (int64_t r = panel; r < smaller(panel + kPanelRows, at.rows); ++r) {
      const Interval keys = visible_keys(a, at.lengths, at.i0 + r);
      t.visible[r] = keys;
      const Interval here = columns_of_row(a, keys, at.b, at.h, at.i0 + r, at.j0, at.keys);
      if (here.lo < here.hi) seen = {smaller(seen.lo, here.lo), larger(seen.hi, here.hi)};
    }
    Interval& computed = t.computed[panel / kPanelRows];
    computed = {0, 0};
    if (seen.lo >= seen.hi) continue;
    computed = {seen.lo / kPanelColumns * kPanelColumns,
                round_up(seen.hi, kColumnUnit<Arithmetic>)};
    any = true;
  }
  if (!any) return false;
  copy_rows<Arithmetic>({a.q, at.b, at.h, at.i0, at.rows}, a.qk_dim, at.rows, t.q, t.q_pitch);
  copy_rows<Arithmetic>({pass.d_o, at.b, at.h, at.i0, at.rows}, a.v_dim, at.rows, t.d_o, t.o_pitch);
  for (int64_t r = 0; r < at.rows; ++r) {
    t.statistics[r] = statistics_of(a, at.b, at.h, at.i0 + r);
    const int64_t row = query_row(pass, at.b, at.h, at.i0 + r);
    t.row_dot[r] = pass.row_dot[row], t.one_key_rest[r] = pass.one_key_rest[row];
    if (t.statistics[r].shift == -kInfinity) {  // saw nothing: whatever its dO holds goes nowhere
      fill(t.q + r * t.q_pitch, t.q_pitch - kPitchGap, 0);
      fill(t.d_o + r * t.o_pitch, t.o_pitch - kPitchGap, 0);
    }
  }
  return true;
}

/// One row: raw dots become probabilities, dP becomes dL/d(score).
inline void differentiate_row(const BackwardPass& pass, const ScoreUnits& units,
                              const ScoreCells& cells, const BackwardTile& t, int64_t r, Real* p,
                              Real* d_s) {
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
  score_row(a, units, cells, t.visible[r], t.scratch, p);
  const bool drops = a.dropout.kind != DropoutKind::none;
  if (drops) dropout_factors(a.dropout, a.q_heads, cells, t.factors);
  const SplitFactor to_natural = split(units.to_natural);
  const Float shifts = all(shift), weights = all(weight);
  Float most = zero();
  const auto weigh = [&](auto exp_of) {
    for (int64_t j = cells.first; j < cells.last; j += kLanes) {
      const Float probability = multiply(exp_of(load(p + j), to_natural, shifts), weights);
      most = max(most, probability);
      store(p + j, probability);
    }
  };
  if (-kNearShift < shift && shift < kNearShift) {
    weigh([](Float x, const SplitFactor& unit, Float s) {
      return exp_of_near_difference(x, unit, s);
    });
  } else {
    weigh([](Float x, const SplitFactor& unit, Float s) { return exp_of_difference(x, unit, s); });
  }
  // D of a key that has most of the weight is summed as its dP is, so that dP - D of a row that
  // sees one key is exactly 0. Beside many keys, whose dP lose this and that, D is exact.
  const Float half = all(Real{0.5}), one_key_rest = all(t.one_key_rest[r]);
  const bool has_one_key = max_of_lanes(most) > Real{0.5};
  const Float row_dot = all(t.row_dot[r]);
  for (int64_t j = cells.first; j < cells.last; j += kLanes) {
    const Float probability = load(p + j);
    Float d_p = load(d_s + j), d = row_dot;
    if (drops) d_p = multiply(d_p, load(t.factors + j));
    if (has_one_key) d = add(d, select(less(half, probability), one_key_rest, zero()));
    const Float gradient = multiply(probability, subtract(d_p, d));
    // Where P is 0 the key may be hidden, and dP then is whatever a key out of sight makes it.
    store(d_s + j, select(equal(probability, zero()), zero(), gradient));
  }
  const Float unit = all(static_cast<Real>(kLn2));
  for (int64_t j = cells.first; a.log2_input && j < cells.last; j += kLanes)
    store(d_s + j, multiply(load(d_s + j), unit));
}

/// The dots of a panel's rows with the keys in `columns`, rounded as the forward's are that left
/// the rows' statistics: beside a huge score a rounding is more than a weight.
template <class Arithmetic>
inline void panel_dots(const BackwardPass& pass, const TilePlace& at, const BackwardTile& t,
                       int64_t panel, int rows, Interval columns, Real* dots) {
  const AttentionArguments& a = pass.a;
  const Real* const q = t.q + panel * t.q_pitch;
  if constexpr (Arithmetic::kDepth == 1) {
    if (pass.has_few_rows) {
      const int64_t k_head = at.h / (a.q_heads / a.k_heads);
      few_rows_scores<Arithmetic>({a.k, at.b, k_head, at.j0, at.keys}, a.qk_dim, rows, q, t.q_pitch,
                                  columns.lo, columns.hi, t.staging, dots, kCellPitch);
      return;
    }
  }
  const int64_t words = words_of<Arithmetic>(a.qk_dim), depth = depth_of<Arithmetic>(a.qk_dim);
  for (int64_t j = columns.lo; j < columns.hi; j += kPanelColumns)
    multiply_panel<Arithmetic, Lies::by_rows, Into::overwrite>(
        rows, static_cast<int>(columns.hi - j), q, t.q_pitch, t.k_columns + j * words,
        kPanelColumns, dots + j, kCellPitch, depth, {depth, depth * kPanelColumns});
}

/// P and dL/d(score) of the tile; then finish(r, cells, p, d_s) for each of its rows. Both are zero
/// in [0, width) wherever they were not computed.
template <class Arithmetic, class Finish>
inline void differentiate_tile(const BackwardPass& pass, const TilePlace& at, BackwardTile& t,
                               Finish finish) {
  constexpr int64_t kPanelRows = Arithmetic::kPanelRows;
  const AttentionArguments& a = pass.a;
  const int64_t o_words = words_of<Arithmetic>(a.v_dim), o_depth = depth_of<Arithmetic>(a.v_dim);
  const ScoreUnits units = units_of(a);
  const int64_t width = round_up(at.keys, kPanelColumns) > round_up(at.keys, kPanelRows)
                            ? round_up(at.keys, kPanelColumns)
                            : round_up(at.keys, kPanelRows);
  for (int64_t panel = 0; panel < at.rows; panel += kPanelRows) {
    const int rows = static_cast<int>(smaller(kPanelRows, at.rows - panel));
    const Interval columns = t.computed[panel / kPanelRows];
    Real *p = t.p + panel * kCellPitch, *d_s = t.d_s + panel * kCellPitch;
    if (columns.lo < columns.hi) panel_dots<Arithmetic>(pass, at, t, panel, rows, columns, p);
    for (int64_t j = columns.lo; j < columns.hi; j += kPanelColumns) {
      const int wide = static_cast<int>(columns.hi - j);
      multiply_panel<Arithmetic, Lies::by_rows, Into::overwrite>(
          rows, wide, t.d_o + panel * t.o_pitch, t.o_pitch, t.v_columns + j * o_words,
          kPanelColumns, d_s + j, kCellPitch, o_depth, {o_depth, o_depth * kPanelColumns});
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
