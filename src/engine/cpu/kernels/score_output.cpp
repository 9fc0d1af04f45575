#include "engine/cpu/kernels/score_output.h"

#include "engine/cpu/kernels/few_rows.h"
#include "engine/cpu/kernels/forward_tile.h"

namespace heddle::engine::cpu::HEDDLE_CPU_LEVEL {

namespace {

/// A row of Q, one within its length, against all its keys, a block at a time.
class ScoreRow {
 public:
  ScoreRow(const ForwardPass& pass, int64_t b, int64_t h, int64_t i, void* scratch)
      : a_(pass.a),
        tile_(tile_in(pass.scratch, scratch)),
        units_(units_of(a_)),
        lengths_(lengths_of(a_, b)),
        k_head_(h / (a_.q_heads / a_.k_heads)),
        b_(b) {
    row_ = {i, h, visible_keys(a_, lengths_, i)};
    copy_rows<Singles>({a_.q, b, h, i, 1}, a_.qk_dim, 1, tile_.q, tile_.q_pitch);
    multiply_by_scales(*a_.k, k_head_, a_.qk_dim, tile_.q);
  }

  /// Calls visit(first key, scores, count) for each block of keys that the row may see some of.
  template <class Visit>
  void for_each_block(Visit&& visit) {
    const int64_t first = row_.visible.lo / kForwardKeys * kForwardKeys;
    for (int64_t j0 = first; j0 < row_.visible.hi; j0 += kForwardKeys) {
      const int64_t keys = smaller(kForwardKeys, row_.visible.hi - j0);
      const int64_t last = round_up(keys, kLanes);
      few_rows_scores<Singles>({a_.k, b_, k_head_, j0, keys}, a_.qk_dim, 1, tile_.q, tile_.q_pitch,
                               0, last, tile_.staging, tile_.s, kScorePitch);
      const ScoreCells cells{b_, row_.h, row_.i, lengths_, j0, 0, last, keys};
      score_row(a_, units_, cells, row_.visible, tile_.scratch, tile_.s);
      visit(j0, tile_.s, keys);
    }
  }

  const ScoreUnits& units() const { return units_; }

 private:
  const AttentionArguments& a_;
  Tile tile_;
  ScoreUnits units_;
  Lengths lengths_;
  int64_t k_head_, b_;
  Row row_;
};

}  // namespace

void write_scores(const ForwardPass& pass, int64_t b, int64_t h, int64_t i, void* scratch) {
  const AttentionArguments& a = pass.a;
  const View& out = *a.scores;
  char* const p = row_address(out, b, h, i);
  const auto write = [&](int64_t key, Real value) {
    write_number_at(out.element, p + key * out.stride[3] * out.element_bytes, value);
  };
  for (int64_t key = 0; key < a.kv_length; ++key) write(key, 0);
  if (i >= lengths_of(a, b).q) return;
  ScoreRow row(pass, b, h, i, scratch);
  const double to_natural = row.units().to_natural;
  Real max = a.sink ? number_at(*a.sink, h * a.sink->stride[1]) : -kInfinity;
  double sum = a.sink && max > -kInfinity ? 1 : 0;
  const auto natural = [&](Real score) { return static_cast<Real>(score * to_natural); };
  if (a.scores_after_softmax) {
    row.for_each_block([&](int64_t, const Real* scores, int64_t count) {
      for (int64_t n = 0; n < count; ++n) {
        const Real x = natural(scores[n]);
        if (x == -kInfinity) continue;
        if (x > max || x != x) {
          sum *= __builtin_exp(static_cast<double>(max) - x);
          max = x;
        }
        sum += __builtin_exp(static_cast<double>(x) - max);
      }
    });
  }
  row.for_each_block([&](int64_t j0, const Real* scores, int64_t count) {
    for (int64_t n = 0; n < count; ++n) {
      const Real x = natural(scores[n]);
      if (x == -kInfinity) continue;
      const double p = __builtin_exp(static_cast<double>(x) - max) / sum;
      write(j0 + n, a.scores_after_softmax ? static_cast<Real>(p) : x);
    }
  });
}

}  // namespace heddle::engine::cpu::HEDDLE_CPU_LEVEL
