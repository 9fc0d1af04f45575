// One tile of the forward pass, some query rows against one block of keys at a time: its memory,
// and the softmax between its two products.
#pragma once

#include "engine/cpu/kernels/pack.h"
#include "engine/cpu/kernels/softmax.h"
#include "engine/cpu/kernels/two_sum.h"

namespace heddle::engine::cpu::HEDDLE_CPU_LEVEL {

struct Tile {
  Real *q, *k, *v;            ///< words; v of few rows: a block's share of O
  Real *o, *s, *p, *staging;  ///< p: probabilities as words, of Parts plane after plane of a row
  Real *max, *sum;
  /// What O and the sum of weights have lost where blocks of keys were added to them; those of O
  /// null unless the pass keeps them.
  Real *o_lost, *sum_lost;
  Real* factors;
  Row* rows;
  ScoreScratch scratch;
  int64_t q_pitch, o_pitch;
};

inline Tile tile_in(const ForwardScratch& at, void* memory) {
  char* const base = static_cast<char*>(memory);
  const auto floats = [&](int64_t offset) { return reinterpret_cast<Real*>(base + offset); };
  Tile t;
  t.q = floats(at.q), t.k = floats(at.k), t.v = floats(at.v);
  t.o = floats(at.o), t.s = floats(at.s), t.p = floats(at.p), t.staging = floats(at.staging);
  t.max = floats(at.max), t.sum = floats(at.sum), t.sum_lost = floats(at.sum_lost);
  t.o_lost = at.o_lost > 0 ? floats(at.o_lost) : nullptr;
  t.factors = floats(at.factors);
  t.rows = reinterpret_cast<Row*>(base + at.rows);
  t.scratch = {reinterpret_cast<ScoreValue*>(base + at.score_values), floats(at.score_strips),
               kForwardKeys};
  t.q_pitch = at.q_pitch, t.o_pitch = at.o_pitch;
  return t;
}

/// A block of keys as a task visits it.
struct KeyBlock {
  int64_t b, j0, keys;
  Lengths lengths;
};

inline Interval join(Interval a, Interval b) {
  if (a.lo >= a.hi) return b;
  if (b.lo >= b.hi) return a;
  return {smaller(a.lo, b.lo), larger(a.hi, b.hi)};
}

/// Columns of the block that rows [first, first + count) of the tile see among them.
inline Interval columns_seen(const AttentionArguments& a, const Tile& t, const KeyBlock& block,
                             int64_t first, int64_t count) {
  Interval seen{0, 0};
  for (int64_t r = first; r < first + count; ++r) {
    const Row& row = t.rows[r];
    seen = join(seen, columns_of_row(a, row.visible, block.b, row.h, row.i, block.j0, block.keys));
  }
  return seen;
}

inline void multiply_row(Real* x, Real factor, int64_t columns) {
  const Float f = all(factor);
  for (int64_t d = 0; d < columns; d += kLanes) store(x + d, multiply(load(x + d), f));
}

/// Words of a plane of a row's probabilities, and of all: whole cache lines, but where they are the
/// scores.
template <class Arithmetic>
inline constexpr int64_t kProbabilityPlane = kForwardKeys / Arithmetic::kPack;
template <class Arithmetic>
inline constexpr int64_t kProbabilityPitch =
    kProbabilityPlane<Arithmetic>* Arithmetic::kParts + kPitchGap;
static_assert(kProbabilityPitch<Singles> == kScorePitch);

/// Probabilities of a row as words; nothing to do where they are.
inline void convert_probabilities(Singles, const Real*, int64_t, int64_t, Real*) {}
#if defined(HEDDLE_CPU_LEVEL_BF16)
inline void convert_probabilities(Pairs, const Real* p, int64_t first, int64_t last, Real* words) {
  uint16_t* out = reinterpret_cast<uint16_t*>(words);
  for (int64_t j = first; j < last; j += kLanes) store_bf16_fast(out + j, load(p + j));
}
template <int kParts>
inline void convert_probabilities(Parts<kParts>, const Real* p, int64_t first, int64_t last,
                                  Real* words) {
  split_numbers<kParts>(p + first, last - first, reinterpret_cast<uint16_t*>(words) + first,
                        kForwardKeys);
}
#endif

/// The panel's raw dots in columns [first, last) become probabilities, relative to the rows'
/// running maxima, and what the rows had summed up shrinks where these grew.
template <class Arithmetic>
inline void softmax_panel(const AttentionArguments& a, const ScoreUnits& units, Tile& t,
                          const KeyBlock& block, int64_t panel, int rows, int64_t first,
                          int64_t last) {
  const auto cells_of = [&](const Row& row) {
    return ScoreCells{block.b, row.h, row.i, block.lengths, block.j0, first, last, block.keys};
  };
  // All maxima first: what waits for one row's is then hidden behind the others'.
  Real after[Arithmetic::kPanelRows];
  for (int r = 0; r < rows; ++r) {
    const Row& row = t.rows[panel + r];
    Real* s = t.s + r * kScorePitch;
    score_row(a, units, cells_of(row), row.visible, t.scratch, s);
    const Real before = t.max[panel + r], block_max = max_of(s, first, last);
    after[r] = block_max > before ? block_max : before;
  }
  for (int r = 0; r < rows; ++r) {
    Real* s = t.s + r * kScorePitch;
    const Real sum = exponentiate(s, first, last, after[r], units.to_natural);
    if (a.dropout.kind != DropoutKind::none) {
      dropout_factors(a.dropout, a.q_heads, cells_of(t.rows[panel + r]), t.factors);
      for (int64_t j = first; j < last; j += kLanes)
        store(s + j, multiply(load(s + j), load(t.factors + j)));
    }
    convert_probabilities(Arithmetic(), s, first, last, t.p + r * kProbabilityPitch<Arithmetic>);
    const Real before = t.max[panel + r];
    if (before == after[r]) {
      t.sum_lost[panel + r] += add_to(t.sum[panel + r], sum);
      continue;
    }
    t.max[panel + r] = after[r];
    const Real alpha = exp_of_product(before - after[r], units.to_natural);
    t.sum[panel + r] *= alpha;
    t.sum_lost[panel + r] = t.sum_lost[panel + r] * alpha + add_to(t.sum[panel + r], sum);
    multiply_row(t.o + (panel + r) * t.o_pitch, alpha, t.o_pitch);
    if (t.o_lost) multiply_row(t.o_lost + (panel + r) * t.o_pitch, alpha, t.o_pitch);
  }
}

}  // namespace heddle::engine::cpu::HEDDLE_CPU_LEVEL
