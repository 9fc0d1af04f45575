// Flash attention, forward: one task is a tile of query rows against all (or one
// part of) its keys.
//
//   for each block of keys:            K and V packed once for the whole tile
//     for each panel of query rows:    S = Q K^T;  P = exp(S - max);  O = O * alpha + P V
//
// The panel is the inner loop and visits only the columns its rows can see, so a causal tile pays
// for its diagonal with a granularity of one panel by one vector. A tile of few rows (decoding)
// packs nothing: few_rows.h.
#include "engine/cpu/kernels/forward.h"

#include "engine/cpu/kernels/code_tiles.h"
#include "engine/cpu/kernels/few_rows.h"
#include "engine/cpu/kernels/forward_tile.h"

namespace heddle::engine::cpu::HEDDLE_CPU_LEVEL {

namespace {

/// Columns of a panel to compute: whole units, and whole panels of K to the left.
template <class Arithmetic>
Interval columns_computed(Interval seen) {
  return {seen.lo / kPanelColumns * kPanelColumns, round_up(seen.hi, kColumnUnit<Arithmetic>)};
}

/// So many keys' share of O is summed by itself. A backward reads O as D = rowsum(dO * O), whose
/// error is multiplied by what queries and keys have in common: of projections with biases dQ and
/// dK in f32 were up to 15 times as far from f64 as a program that sums P * dP, and are no farther
/// with runs of 16 (of 32 now and then). They cost such a forward a twentieth. Tiles sum 32 keys by
/// themselves.
template <class Arithmetic>
int64_t keys_summed_apart(const AttentionArguments& a) {
  if constexpr (Arithmetic::kDepth > 1) return kForwardKeys;
  const bool has_backward = a.stats || a.max;
  return has_backward && a.o->element == kRealElement ? larger(16, kLanes) : kForwardKeys;
}

/// A block's share of O, added to that of the blocks before it. Keys, or runs of them, that are
/// added to O one by one round at its size each: 16384 keys in runs of 16 left O 14 roundings of
/// its largest off where torch's is 4, 65536 keys of a single row 90.
void add_block(const Real* share, int64_t share_pitch, int rows, int64_t columns, Real* o,
               int64_t o_pitch) {
  for (int r = 0; r < rows; ++r) {
    for (int64_t d = 0; d < columns; d += kLanes) {
      Real* const out = o + r * o_pitch + d;
      store(out, add(load(out), load(share + r * share_pitch + d)));
    }
  }
}
/// The same; what the sum loses is added to `lost`, which lies as O does.
void add_block_and_lost(const Real* share, int64_t share_pitch, int rows, int64_t columns, Real* o,
                        Real* lost, int64_t o_pitch) {
  for (int r = 0; r < rows; ++r) {
    for (int64_t d = 0; d < columns; d += kLanes) {
      Real *const out = o + r * o_pitch + d, *const to = lost + r * o_pitch + d;
      const Float sum = load(out), x = load(share + r * share_pitch + d), next = add(sum, x);
      store(out, next);
      store(to, add(load(to), lost_by_sum(sum, x, next)));
    }
  }
}

/// o += lost; of infinities nothing is known but the sum.
void add_lost(const Real* lost, int64_t columns, Real* o) {
  for (int64_t d = 0; d < columns; d += kLanes) {
    const Float x = load(lost + d), known = select(less(absolute(x), all(kInfinity)), x, zero());
    store(o + d, add(load(o + d), known));
  }
}

/// The panel's scores, softmax and output for the keys of one packed block that its rows see.
template <class Arithmetic>
void visit_panel(const AttentionArguments& a, const ScoreUnits& units, Tile& t,
                 const KeyBlock& block, int64_t panel, int rows) {
  const Interval seen = columns_seen(a, t, block, panel, rows);
  if (seen.lo >= seen.hi) return;
  const Interval computed = columns_computed<Arithmetic>(seen);
  const int64_t first = computed.lo, last = computed.hi;

  const int64_t words = words_of<Arithmetic>(a.qk_dim), depth = depth_of<Arithmetic>(a.qk_dim);
  for (int64_t j = first; j < last; j += kPanelColumns) {
    multiply_panel<Arithmetic, Lies::by_rows, Into::overwrite>(
        rows, static_cast<int>(last - j), t.q + panel * t.q_pitch, t.q_pitch, t.k + j * words,
        kPanelColumns, t.s + j, kScorePitch, depth, {depth, depth * kPanelColumns});
  }
  softmax_panel<Arithmetic>(a, units, t, block, panel, rows, first, last);
  const int64_t run = keys_summed_apart<Arithmetic>(a);
  for (int64_t d = 0; d < a.v_dim; d += kPanelColumns) {
    const int columns = static_cast<int>(smaller(kPanelColumns, a.v_dim - d));
    Real* const o = t.o + panel * t.o_pitch + d;
    Real* const lost = t.o_lost ? t.o_lost + panel * t.o_pitch + d : nullptr;
    const auto weigh = [&]<Into into>(int64_t j, Real* out, int64_t pitch) {
      constexpr int64_t kPack = Arithmetic::kPack, kParts = Arithmetic::kParts;
      multiply_panel<Arithmetic, Lies::by_rows, into>(
          rows, columns, t.p + j / kPack, kProbabilityPitch<Arithmetic>,
          t.v + (kParts * d * kForwardKeys + j * kPanelColumns) / kPack, kPanelColumns, out, pitch,
          smaller(run, last - j) / kPack,
          {kProbabilityPlane<Arithmetic>, kForwardKeys * kPanelColumns / kPack});
    };
    // Sums of parts are added to by every product of a tile.
    if (Arithmetic::kParts == 1 && last - first <= run) {
      weigh.template operator()<Into::accumulate>(first, o, t.o_pitch);
      continue;
    }
    alignas(64) Real share[Arithmetic::kPanelRows * kPanelColumns];
    weigh.template operator()<Into::overwrite>(first, share, kPanelColumns);
    for (int64_t j = first + run; j < last; j += run)
      weigh.template operator()<Into::accumulate>(j, share, kPanelColumns);
    if (lost) {
      add_block_and_lost(share, kPanelColumns, rows, columns, o, lost, t.o_pitch);
    } else {
      add_block(share, kPanelColumns, rows, columns, o, t.o_pitch);
    }
  }
}

/// The same for all rows of a tile that has few, from K and V as they lie. `next`: the keys of the
/// block after it. `codes`: null unless tiles multiply them. Probabilities stay f32.
template <class Arithmetic>
void visit_few_rows(const AttentionArguments& a, const ScoreUnits& units, Tile& t,
                    const CodeTiles* codes, const KeyBlock& block, const RowRange& keys,
                    const RowRange& values, const RowRange& next, int rows) {
  const Interval seen = columns_seen(a, t, block, 0, rows);
  if (seen.lo >= seen.hi) return;
  const auto [first, last] = columns_computed<Arithmetic>(seen);
  if (!codes || !codes->scores(keys, values, a.qk_dim, rows, first, last, t.s, kScorePitch)) {
    for (int64_t at = first; at < first + kRowsAhead; at += kLanes) fetch_rows(values, at);
    few_rows_scores<Arithmetic>(keys, a.qk_dim, rows, t.q, t.q_pitch, first, last, t.staging, t.s,
                                kScorePitch);
  }
  softmax_panel<Singles>(a, units, t, block, 0, rows, first, last);
  if (!codes ||
      !codes->output(values, next, a.v_dim, rows, t.s, kScorePitch, first, last, t.o, t.o_pitch)) {
    for (int64_t at = 0; at < kRowsAhead; at += kLanes) fetch_rows(next, at);
    fill(t.v, kShape.few_rows * t.o_pitch, 0);
    few_rows_output(values, a.v_dim, rows, t.s, kScorePitch, first, last, t.staging, t.v,
                    t.o_pitch);
    add_block(t.v, t.o_pitch, rows, a.v_dim, t.o, t.o_pitch);
  }
}

void store_partial(const ForwardPass& pass, const ForwardTask& task, const Tile& t, int64_t r) {
  const AttentionArguments& a = pass.a;
  const Row& row = t.rows[r];
  const int64_t at = ((task.split * a.batch + task.b) * a.q_heads + row.h) * a.q_length + row.i;
  pass.partial_max[at] = t.max[r];
  pass.partial_sum[at] = t.sum[r];
  __builtin_memcpy(pass.partial_o + at * a.v_dim, t.o + r * t.o_pitch,
                   static_cast<size_t>(a.v_dim) * sizeof(Real));
}

/// write_result() of a sum of values, or of codes: what codes are multiplied by comes last, as of a
/// large scale their mean is a number where their sum is none.
void write_row_end(const AttentionArguments& a, int64_t b, int64_t h, int64_t i, RowResult row,
                   Real* output) {
  if (a.v->scale && row.output_factor != 0) {
    for (int64_t d = 0; d < a.v_dim; ++d) output[d] *= row.output_factor;
    multiply_by_scales(*a.v, h / (a.q_heads / a.v_heads), a.v_dim, output);
    row.output_factor = 1;
  }
  write_result(a, b, h, i, row, output);
}

/// False, and nothing is written, if there are numbers that the arithmetic does not take.
template <class Arithmetic>
bool run(const ForwardPass& pass, const ForwardTask& task, void* memory) {
  const AttentionArguments& a = pass.a;
  Tile t = tile_in(pass.scratch, memory);
  if constexpr (Arithmetic::kPack == 1) t.p = t.s;
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
    t.rows[r] = {i, h, visible_keys(a, lengths, i)};
    seen = join(seen, t.rows[r].visible);
    const RowRange one{a.q, task.b, h, i, 1};
    copy_rows<Arithmetic>(one, a.qk_dim, 1, t.q + r * t.q_pitch, t.q_pitch);
    // q . (code * scale) = (q * scale) . code, and likewise of the output: codes stay as they are.
    multiply_by_scales(*a.k, k_head, a.qk_dim, t.q + r * t.q_pitch);
    t.max[r] = -kInfinity;
    t.sum[r] = t.sum_lost[r] = 0;
  }
  constexpr int64_t kPanelRows = Arithmetic::kPanelRows;
  const int64_t panels_end = round_up(rows, kPanelRows);
  fill(t.q + rows * t.q_pitch, (panels_end - rows) * t.q_pitch, 0);
  fill(t.o, panels_end * t.o_pitch, 0);
  if (t.o_lost) fill(t.o_lost, panels_end * t.o_pitch, 0);
  const int64_t words = words_of<Arithmetic>(a.qk_dim), depth = depth_of<Arithmetic>(a.qk_dim);
  if (!takes<Arithmetic>(t.q, rows, t.q_pitch, depth)) return false;
  CodeTiles codes(pass.scratch, memory);
  if (pass.code_bytes > 0)
    codes.take_queries(*a.k, t.q, t.q_pitch, a.qk_dim, static_cast<int>(rows));

  // A part is one of the blocks that the tile sees, however long sequences may be.
  const int64_t first_seen = seen.lo / kForwardKeys * kForwardKeys;
  const int64_t blocks = (seen.hi - first_seen + kForwardKeys - 1) / kForwardKeys;
  const int64_t part = (blocks + pass.splits - 1) / pass.splits * kForwardKeys;
  const int64_t begin = first_seen + task.split * part, end = smaller(seen.hi, begin + part);
  for (int64_t j0 = begin; j0 < end; j0 += kForwardKeys) {
    const KeyBlock block{task.b, j0, smaller(kForwardKeys, end - j0), lengths};
    const RowRange keys{a.k, task.b, k_head, j0, block.keys};
    const RowRange values{a.v, task.b, v_head, j0, block.keys};
    if constexpr (Arithmetic::kDepth == 1) {
      if (pass.has_few_rows) {
        const int64_t j1 = j0 + kForwardKeys;
        const RowRange next{a.k, task.b, k_head, j1, larger(0, smaller(kForwardKeys, end - j1))};
        visit_few_rows<Arithmetic>(a, units, t, pass.code_bytes > 0 ? &codes : nullptr, block, keys,
                                   values, next, static_cast<int>(rows));
        continue;
      }
    }
    if (a.block_mask || a.boolean_mask) {
      const Interval columns = columns_seen(a, t, block, 0, rows);
      if (columns.lo >= columns.hi) continue;
    }
    pack_transposed<Arithmetic>(keys, a.qk_dim, t.k, t.staging);
    pack_rows<Arithmetic>(values, a.v_dim, kForwardKeys, t.v, t.staging);
    const int64_t key_panels = round_up(block.keys, kPanelColumns) / kPanelColumns;
    const int64_t plane_of_values = kForwardKeys / Arithmetic::kPack * kPanelColumns;
    if (!takes<Arithmetic>(t.k, key_panels, words * kPanelColumns, depth * kPanelColumns) ||
        !takes<Arithmetic>(t.v, round_up(a.v_dim, kPanelColumns) / kPanelColumns,
                           Arithmetic::kParts * plane_of_values, plane_of_values))
      return false;
    for (int64_t panel = 0; panel < rows; panel += kPanelRows)
      visit_panel<Arithmetic>(a, units, t, block, panel,
                              static_cast<int>(smaller(kPanelRows, rows - panel)));
  }

  for (int64_t r = 0; r < rows; ++r) {
    t.sum[r] = with_lost(t.sum[r], t.sum_lost[r]);
    if (t.o_lost) add_lost(t.o_lost + r * t.o_pitch, a.v_dim, t.o + r * t.o_pitch);
    if (pass.splits > 1) {
      store_partial(pass, task, t, r);
    } else {
      const RowResult result = finish_row(a, t.max[r], t.sum[r], units.to_natural, t.rows[r].h);
      write_row_end(a, task.b, t.rows[r].h, t.rows[r].i, result, t.o + r * t.o_pitch);
    }
  }
  if (pass.splits > 1) return true;
  for (int64_t r = rows; r < count; ++r) {
    write_padding_row(a, task.b, task.first_head + (task.first_row + r) % pass.group,
                      (task.first_row + r) / pass.group);
  }
  return true;
}

#if defined(HEDDLE_CPU_LEVEL_BF16)
template <class Arithmetic>
bool run_by_tiles(const ForwardPass& pass, const ForwardTask& task, void* memory) {
  const TileSession session;
  return run<Arithmetic>(pass, task, memory);
}
#endif

}  // namespace

void forward(const ForwardPass& pass, const ForwardTask& task, void* memory) {
#if defined(HEDDLE_CPU_LEVEL_BF16)
  bool is_done = false;
  switch (pass.products) {
    case Products::tiles_of_thirds:
      is_done = run_by_tiles<Parts<3>>(pass, task, memory);
      break;
    case Products::tiles_of_halves:
      is_done = run_by_tiles<Parts<2>>(pass, task, memory);
      break;
    case Products::tiles:
      is_done = run_by_tiles<Tiles>(pass, task, memory);
      break;
    case Products::pairs:
      is_done = run<Pairs>(pass, task, memory);
      break;
    case Products::singles:
      is_done = pass.code_bytes > 0 && run_by_tiles<Singles>(pass, task, memory);
  }
  if (is_done) return;
#endif
  run<Singles>(pass, task, memory);
}

void combine(const ForwardPass& pass, int64_t b, int64_t h, int64_t first, int64_t last,
             void* memory) {
  const AttentionArguments& a = pass.a;
  Real* const o = static_cast<Real*>(memory);
  const ScoreUnits units = units_of(a);
  const Lengths lengths = lengths_of(a, b);
  const int64_t part = a.batch * a.q_heads * a.q_length;
  for (int64_t i = first; i < last; ++i) {
    if (i >= lengths.q) {
      write_padding_row(a, b, h, i);
      continue;
    }
    const int64_t at = (b * a.q_heads + h) * a.q_length + i;
    Real max = -kInfinity, sum = 0;
    for (int64_t n = 0; n < pass.splits; ++n) {
      const Real m = pass.partial_max[n * part + at];
      max = m > max ? m : max;
    }
    fill(o, a.v_dim, 0);
    for (int64_t n = 0; n < pass.splits; ++n) {
      const Real m = pass.partial_max[n * part + at];
      if (m == -kInfinity) {
        sum += pass.partial_sum[n * part + at];  // 0, or the NaN of a row that saw one
        continue;
      }
      const Real factor = exp_of_product(m - max, units.to_natural);
      sum += factor * pass.partial_sum[n * part + at];
      const Real* from = pass.partial_o + (n * part + at) * a.v_dim;
      for (int64_t d = 0; d < a.v_dim; ++d) o[d] += factor * from[d];
    }
    write_row_end(a, b, h, i, finish_row(a, max, sum, units.to_natural, h), o);
  }
}

}  // namespace heddle::engine::cpu::HEDDLE_CPU_LEVEL
