// Flash attention, forward: one task is a tile of query rows against all (or one
// part of) its keys.
//
//   for each block of keys:            K and V packed once for the whole tile
//     for each panel of query rows:    S = Q K^T;  P = exp(S - max);  O = O * alpha + P V
//
// The panel is the inner loop and visits only the columns its rows can see, so a causal tile pays
// for its diagonal with a granularity of one panel by one vector.
#include "engine/cpu/kernels/forward.h"

#include "engine/cpu/kernels/pack.h"
#include "engine/cpu/kernels/softmax.h"

namespace heddle::engine::cpu::HEDDLE_CPU_LEVEL {

namespace {

/// Pitch of the scores of a panel: off the power of two, so that rows fall into different cache
/// sets.
constexpr int64_t kScorePitch = kForwardKeys + 16;

struct Row {
  int64_t i, h;
  Interval visible;
};

struct Tile {
  float *q, *k, *v;            ///< words
  float *o, *s, *p, *staging;  ///< p: probabilities as words; the scores' own memory with Singles
  float *max, *sum;
  float* factors;
  Row* rows;
  ScoreRoom room;
  int64_t q_pitch, o_pitch;
};

template <class Arithmetic>
Tile carve(const ForwardPass& pass, Scratch& scratch) {
  const AttentionArguments& a = pass.a;
  const int64_t rows = round_up(pass.tile_rows, kPanelRows);
  Tile t;
  t.q_pitch = round_up(words_of<Arithmetic>(a.qk_dim), kLanes) + kLanes;
  t.o_pitch = round_up(a.v_dim, kPanelColumns);
  t.q = scratch.take<float>(rows * t.q_pitch);
  t.o = scratch.take<float>(rows * t.o_pitch);
  t.k = scratch.take<float>(kForwardKeys * words_of<Arithmetic>(a.qk_dim));
  t.v = scratch.take<float>(words_of<Arithmetic>(kForwardKeys) * t.o_pitch);
  t.s = scratch.take<float>(kPanelRows * kScorePitch);
  t.p = Arithmetic::kPack == 1 ? t.s
                               : scratch.take<float>(kPanelRows * kScorePitch / Arithmetic::kPack);
  t.staging = scratch.take<float>(staging_words(larger(a.qk_dim, a.v_dim)));
  t.max = scratch.take<float>(rows + kLanes);
  t.sum = scratch.take<float>(rows + kLanes);
  t.factors = scratch.take<float>(a.dropout.kind == DropoutKind::none ? 0 : kForwardKeys);
  t.rows = scratch.take<Row>(rows);
  t.room = score_room(scratch, a.score.is_identity ? 0 : a.score.count, kForwardKeys);
  return t;
}

Interval join(Interval a, Interval b) {
  if (a.lo >= a.hi) return b;
  if (b.lo >= b.hi) return a;
  return {smaller(a.lo, b.lo), larger(a.hi, b.hi)};
}

/// Probabilities of a row as words; nothing to do where they are.
void convert_probabilities(Singles, const float*, int64_t, int64_t, float*) {}
#if defined(HEDDLE_CPU_LEVEL_BF16)
void convert_probabilities(Pairs, const float* p, int64_t first, int64_t last, float* words) {
  uint16_t* out = reinterpret_cast<uint16_t*>(words);
  for (int64_t j = first; j < last; j += kLanes) store_bf16_fast(out + j, load(p + j));
}
#endif

/// The panel's scores, softmax and output for the keys of one block that its rows see.
template <class Arithmetic>
void visit_panel(const ForwardPass& pass, const ForwardTask& task, const ScoreUnits& units,
                 Lengths lengths, Tile& t, int64_t panel, int rows, int64_t j0, int64_t keys) {
  const AttentionArguments& a = pass.a;
  const Row* row = t.rows + panel;
  Interval seen{0, 0};
  for (int r = 0; r < rows; ++r) seen = join(seen, row[r].visible);
  const int64_t lo = larger(seen.lo - j0, 0), hi = smaller(seen.hi - j0, keys);
  if (lo >= hi) return;
  const int64_t first = lo / kPanelColumns * kPanelColumns, last = round_up(hi, kLanes);

  const int64_t words = words_of<Arithmetic>(a.qk_dim);
  for (int64_t j = first; j < last; j += kPanelColumns) {
    multiply_panel<Arithmetic, Lies::by_rows, Into::overwrite>(
        rows, static_cast<int>(last - j), t.q + panel * t.q_pitch, t.q_pitch, t.k + j * words,
        kPanelColumns, t.s + j, kScorePitch, words);
  }

  // Softmax, row by row; alpha is what the earlier sums and outputs shrink by.
  float alpha[kPanelRows];
  bool shrinks = false;
  for (int r = 0; r < rows; ++r) {
    float* s = t.s + r * kScorePitch;
    const ScoreCells cells{task.b, row[r].h, row[r].i, lengths, j0, first, last, keys};
    score_row(a, units, cells, row[r].visible, t.room, s);
    const float before = t.max[panel + r];
    const float block_max = max_of(s, first, last);
    const float after = block_max > before ? block_max : before;
    shrinks |= before != after;
    t.max[panel + r] = after;
    const float sum = exponentiate(s, first, last, after, units.to_log2);
    if (a.dropout.kind != DropoutKind::none) {
      dropout_factors(a.dropout, a.q_heads, cells, t.factors);
      for (int64_t j = first; j < last; j += kLanes)
        store(s + j, multiply(load(s + j), load(t.factors + j)));
    }
    convert_probabilities(Arithmetic(), s, first, last, t.p + r * kScorePitch / Arithmetic::kPack);
    alpha[r] =
        before == after ? 1 : __builtin_exp2f(static_cast<float>((before - after) * units.to_log2));
    t.sum[panel + r] = t.sum[panel + r] * alpha[r] + sum;
  }
  if (shrinks) {
    for (int r = 0; r < rows; ++r) {
      if (alpha[r] == 1) continue;
      float* o = t.o + (panel + r) * t.o_pitch;
      const Float factor = all(alpha[r]);
      for (int64_t d = 0; d < t.o_pitch; d += kLanes) store(o + d, multiply(load(o + d), factor));
    }
  }

  constexpr int64_t kPack = Arithmetic::kPack;
  for (int64_t d = 0; d < a.v_dim; d += kPanelColumns) {
    multiply_panel<Arithmetic, Lies::by_rows, Into::accumulate>(
        rows, static_cast<int>(a.v_dim - d), t.p + first / kPack, kScorePitch / kPack,
        t.v + (d * kForwardKeys + first * kPanelColumns) / kPack, kPanelColumns,
        t.o + panel * t.o_pitch + d, t.o_pitch, (last - first) / kPack);
  }
}

void store_partial(const ForwardPass& pass, const ForwardTask& task, const Tile& t, int64_t r) {
  const AttentionArguments& a = pass.a;
  const Row& row = t.rows[r];
  const int64_t at = ((task.split * a.batch + task.b) * a.q_heads + row.h) * a.q_length + row.i;
  pass.partial_max[at] = t.max[r];
  pass.partial_sum[at] = t.sum[r];
  __builtin_memcpy(pass.partial_o + at * a.v_dim, t.o + r * t.o_pitch,
                   static_cast<size_t>(a.v_dim) * sizeof(float));
}

template <class Arithmetic>
void run(const ForwardPass& pass, const ForwardTask& task, void* memory) {
  const AttentionArguments& a = pass.a;
  Scratch scratch{static_cast<char*>(memory)};
  Tile t = carve<Arithmetic>(pass, scratch);
  const Lengths lengths = lengths_of(a, task.b);
  const ScoreUnits units = units_of(a);
  const int64_t k_head = task.first_head / (a.q_heads / a.k_heads);
  const int64_t v_head = task.first_head / (a.q_heads / a.v_heads);

  const int64_t count = smaller(pass.tile_rows, a.q_length * pass.group - task.first_row);
  const int64_t rows = larger(0, smaller(count, lengths.q * pass.group - task.first_row));
  Interval seen{0, 0};
  for (int64_t r = 0; r < rows; ++r) {
    const int64_t i = (task.first_row + r) / pass.group,
                  h = task.first_head + (task.first_row + r) % pass.group;
    t.rows[r] = {i, h, visible_keys(a, lengths, task.b, i)};
    seen = join(seen, t.rows[r].visible);
    const RowRange one{a.q, task.b, h, i, 1};
    copy_rows<Arithmetic>(one, a.qk_dim, 1, t.q + r * t.q_pitch, t.q_pitch);
    t.max[r] = -kInfinity;
    t.sum[r] = 0;
  }
  const int64_t panels_end = round_up(rows, kPanelRows);
  fill(t.q + rows * t.q_pitch, (panels_end - rows) * t.q_pitch, 0);
  fill(t.o, panels_end * t.o_pitch, 0);

  const int64_t part_first = task.split * pass.split_keys;
  const int64_t end = pass.splits > 1 ? smaller(seen.hi, part_first + pass.split_keys) : seen.hi;
  const int64_t begin =
      larger(seen.lo / kForwardKeys * kForwardKeys, pass.splits > 1 ? part_first : 0);
  for (int64_t j0 = begin; j0 < end; j0 += kForwardKeys) {
    const int64_t keys = smaller(kForwardKeys, end - j0);
    pack_transposed<Arithmetic>({a.k, task.b, k_head, j0, keys}, a.qk_dim, t.k, t.staging);
    pack_rows<Arithmetic>({a.v, task.b, v_head, j0, keys}, a.v_dim, kForwardKeys, t.v, t.staging);
    for (int64_t panel = 0; panel < rows; panel += kPanelRows) {
      visit_panel<Arithmetic>(pass, task, units, lengths, t, panel,
                              static_cast<int>(smaller(kPanelRows, rows - panel)), j0, keys);
    }
  }

  for (int64_t r = 0; r < rows; ++r) {
    if (pass.splits > 1) {
      store_partial(pass, task, t, r);
    } else {
      const RowResult result = finish_row(a, t.max[r], t.sum[r], units.to_natural, t.rows[r].h);
      write_result(a, task.b, t.rows[r].h, t.rows[r].i, result, t.o + r * t.o_pitch);
    }
  }
  if (pass.splits > 1) return;
  for (int64_t r = rows; r < count; ++r) {
    write_padding_row(a, task.b, task.first_head + (task.first_row + r) % pass.group,
                      (task.first_row + r) / pass.group);
  }
}

}  // namespace

int64_t forward_scratch_bytes(const ForwardPass& pass) {
  Scratch scratch{nullptr};
#if defined(HEDDLE_CPU_LEVEL_BF16)
  if (pass.pairs) {
    carve<Pairs>(pass, scratch);
    return scratch.used;
  }
#endif
  carve<Singles>(pass, scratch);
  return scratch.used;
}

void forward(const ForwardPass& pass, const ForwardTask& task, void* memory) {
#if defined(HEDDLE_CPU_LEVEL_BF16)
  if (pass.pairs) return run<Pairs>(pass, task, memory);
#endif
  run<Singles>(pass, task, memory);
}

void combine(const ForwardPass& pass, int64_t b, int64_t h, int64_t first, int64_t last,
             void* memory) {
  const AttentionArguments& a = pass.a;
  Scratch scratch{static_cast<char*>(memory)};
  float* o = scratch.take<float>(a.v_dim);
  const ScoreUnits units = units_of(a);
  const Lengths lengths = lengths_of(a, b);
  const int64_t part = a.batch * a.q_heads * a.q_length;
  for (int64_t i = first; i < last; ++i) {
    if (i >= lengths.q) {
      write_padding_row(a, b, h, i);
      continue;
    }
    const int64_t at = (b * a.q_heads + h) * a.q_length + i;
    float max = -kInfinity, sum = 0;
    for (int64_t n = 0; n < pass.splits; ++n) {
      const float m = pass.partial_max[n * part + at];
      max = m > max ? m : max;
    }
    fill(o, a.v_dim, 0);
    for (int64_t n = 0; n < pass.splits; ++n) {
      const float m = pass.partial_max[n * part + at];
      if (m == -kInfinity) {
        sum += pass.partial_sum[n * part + at];  // 0, or the NaN of a row that saw one
        continue;
      }
      const float factor = __builtin_exp2f(static_cast<float>((m - max) * units.to_log2));
      sum += factor * pass.partial_sum[n * part + at];
      const float* from = pass.partial_o + (n * part + at) * a.v_dim;
      for (int64_t d = 0; d < a.v_dim; ++d) o[d] += factor * from[d];
    }
    write_result(a, b, h, i, finish_row(a, max, sum, units.to_natural, h), o);
  }
}

}  // namespace heddle::engine::cpu::HEDDLE_CPU_LEVEL
