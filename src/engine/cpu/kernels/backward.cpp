// Flash attention, backward. A task owns some heads and a chunk of keys. For each
// block of its keys it visits the query rows that see them, tile by tile, adding to dK and dV,
// which stay in cache, and to its own sum for dQ. Every sum is added up in one fixed order by one
// task (dQ: a fixed number of tasks whose sums are then added in order), so results repeat bit for
// bit.
#include "engine/cpu/kernels/backward.h"

#include "engine/cpu/kernels/backward_tile.h"
#include "engine/cpu/kernels/rope.h"
#include "engine/cpu/kernels/two_sum.h"

namespace heddle::engine::cpu::HEDDLE_CPU_LEVEL {

namespace {

int64_t row_tiles(const BackwardPass& pass) {
  return (pass.a.q_length + kBackwardRows - 1) / kBackwardRows;
}
/// Of the mean key of row i's tile.
int64_t tile_row(const BackwardPass& pass, int64_t b, int64_t h, int64_t i) {
  return (b * pass.a.q_heads + h) * row_tiles(pass) + i / kBackwardRows;
}

/// What the products read beside the tile's rows as they lie; with Singles that is all.
void convert_rows(Singles, const BackwardPass&, const TilePlace&, BackwardTile&) {}
void convert_cells(Singles, const TilePlace&, BackwardTile&) {}
#if defined(HEDDLE_CPU_LEVEL_BF16)
/// Two rows of bf16 side by side become one row of pairs; rows past the count are zeros.
template <class Arithmetic>
void pair_rows(const Real* rows, int64_t pitch, int64_t count, int64_t columns, Real* out) {
  static constexpr int64_t kMost = 1 << 14;
  static constexpr uint16_t kNothing[kMost] = {};
  const auto row = [&](int64_t r) {
    return r < count ? reinterpret_cast<const uint16_t*>(rows + r * pitch) : kNothing;
  };
  for (int64_t n = 0; n < depth_of<Arithmetic>(count); ++n, out += columns) {
    const uint16_t *low = row(2 * n), *high = row(2 * n + 1);
    for (int64_t d = 0; d < columns; d += kLanes) store(out + d, pair_up(low + d, high + d));
  }
}
/// The same of every plane of parts.
template <class Arithmetic>
void pair_planes(const Real* rows, int64_t pitch, int64_t count, int64_t columns, Real* out) {
  for (int n = 0; n < Arithmetic::kParts; ++n) {
    pair_rows<Arithmetic>(rows + n * (columns / 2), pitch, count, columns,
                          out + n * kRowPlane * columns);
  }
}
template <class Arithmetic>
requires(Arithmetic::kPack == 2) void convert_rows(Arithmetic, const BackwardPass& pass,
                                                   const TilePlace& at, BackwardTile& t) {
  if (pass.d_k) pair_planes<Arithmetic>(t.q, t.q_pitch, at.rows, t.q_columns, t.q_rows);
  if (pass.d_v) pair_planes<Arithmetic>(t.d_o, t.o_pitch, at.rows, t.o_columns, t.d_o_rows);
}
/// P and dS rounded to bf16. Rows up to the end of the last panel are zeros, so pairs are whole.
void convert_cells(Pairs, const TilePlace& at, BackwardTile& t) {
  const int64_t width = round_up(round_up(at.keys, kPanelColumns), kPanelRows);
  for (int64_t r = 0; r < at.rows; r += 2) {
    const Real *p = t.p + r * kCellPitch, *d_s = t.d_s + r * kCellPitch;
    Real *p_out = t.p_rows + r / 2 * kCellPitch, *d_s_out = t.d_s_rows + r / 2 * kCellPitch;
    uint16_t* keys = reinterpret_cast<uint16_t*>(t.d_s_keys + r * kCellPitch / 2);
    for (int64_t j = 0; j < width; j += kLanes) {
      store(p_out + j, pair_up(to_bf16_fast(load(p + j)), to_bf16_fast(load(p + kCellPitch + j))));
      const Float low = load(d_s + j), high = load(d_s + kCellPitch + j);
      store(d_s_out + j, pair_up(to_bf16_fast(low), to_bf16_fast(high)));
      store_bf16_fast(keys + j, low);
      store_bf16_fast(keys + kCellPitch + j, high);
    }
  }
}

/// The same for tiles, with the pairs of two panels of rows transposed: out[key][pair of rows].
void convert_cells(Tiles, const TilePlace& at, BackwardTile& t) {
  const int64_t width = round_up(at.keys, kPanelColumns);
  const auto pairs_of = [](const Real* low, const Real* high) {
    return pair_up(to_bf16_fast(load(low)), to_bf16_fast(load(high)));
  };
  for (int64_t r0 = 0; r0 < at.rows; r0 += Tiles::kPanelRows) {
    for (int64_t j = 0; j < width; j += kLanes) {
      Float block[kLanes];
      const auto put = [&](Real* out) {
        transpose(block);
        for (int c = 0; c < kLanes; ++c) store(out + (j + c) * kPairPitch + r0 / 2, block[c]);
      };
      const Real *p = t.p + r0 * kCellPitch + j, *d_s = t.d_s + r0 * kCellPitch + j;
      for (int n = 0; n < kLanes; ++n)
        block[n] = pairs_of(p + 2 * n * kCellPitch, p + (2 * n + 1) * kCellPitch);
      put(t.p_rows);
      uint16_t* keys = reinterpret_cast<uint16_t*>(t.d_s_keys) + r0 * kCellPitch + j;
      for (int n = 0; n < kLanes; ++n, keys += 2 * kCellPitch) {
        const auto low = to_bf16_fast(load(d_s + 2 * n * kCellPitch));
        const auto high = to_bf16_fast(load(d_s + (2 * n + 1) * kCellPitch));
        store_bf16_bits(keys, low);
        store_bf16_bits(keys + kCellPitch, high);
        block[n] = pair_up(low, high);
      }
      put(t.d_s_rows);
    }
  }
}
/// The same of parts, plane after plane.
template <int kPlanes>
void convert_cells(Parts<kPlanes>, const TilePlace& at, BackwardTile& t) {
  const int64_t width = round_up(at.keys, kPanelColumns);
  for (int64_t r0 = 0; r0 < at.rows; r0 += Tiles::kPanelRows) {
    for (int64_t j = 0; j < width; j += kLanes) {
      const auto convert = [&](const Real* cells, Real* rows, uint16_t* keys) {
        Float block[kPlanes][kLanes];
        for (int n = 0; n < kLanes; ++n) {
          Float low = load(cells + 2 * n * kCellPitch),
                high = load(cells + (2 * n + 1) * kCellPitch);
          for (int part = 0; part < kPlanes; ++part) {
            const bool is_last = part + 1 == kPlanes;
            const Float first = is_last ? low : cut_to_bf16(low);
            const Float second = is_last ? high : cut_to_bf16(high);
            block[part][n] =
                is_last ? pair_up(to_bf16_fast(low), to_bf16_fast(high)) : pair_up_cut(low, high);
            if (keys) {
              uint16_t* const out = keys + part * kKeysPlane * 2 + 2 * n * kCellPitch;
              store_bf16_fast(out, first);
              store_bf16_fast(out + kCellPitch, second);
            }
            low = subtract(low, first), high = subtract(high, second);
          }
        }
        for (int part = 0; part < kPlanes; ++part) {
          transpose(block[part]);
          for (int c = 0; c < kLanes; ++c)
            store(rows + part * kPairPlane + (j + c) * kPairPitch + r0 / 2, block[part][c]);
        }
      };
      const int64_t cell = r0 * kCellPitch + j;
      convert(t.p + cell, t.p_rows, nullptr);
      convert(t.d_s + cell, t.d_s_rows, reinterpret_cast<uint16_t*>(t.d_s_keys) + cell);
    }
  }
}
#endif

/// sum[keys x columns] += cells^T values: the rows of the tile are what is summed over.
template <class Arithmetic>
void add_key_gradients(const BackwardTile& t, const TilePlace& at, const Real* cells,
                       const Real* values, int64_t value_pitch, int64_t columns, Real* sum,
                       int64_t sum_pitch) {
  constexpr int64_t kPanelRows = Arithmetic::kPanelRows, kPack = Arithmetic::kPack;
  constexpr bool by_keys = Arithmetic::kDepth > 1;
  for (int64_t d = 0; d < columns; d += kPanelColumns) {
    for (int64_t j = 0; j < at.keys; j += kPanelRows) {
      // The rows whose panels see any of these keys; cells in between that do not are zero.
      int64_t first = at.rows, last = 0;
      for (int64_t panel = 0; panel < at.rows; panel += kPanelRows) {
        const Interval columns_of_panel = t.computed[panel / kPanelRows];
        if (columns_of_panel.lo >= j + kPanelRows || columns_of_panel.hi <= j) continue;
        first = smaller(first, panel);
        last = smaller(panel + kPanelRows, at.rows);
      }
      if (first >= last) continue;
      const int64_t row = first / kPack;
      multiply_panel<Arithmetic, by_keys ? Lies::by_rows : Lies::by_columns, Into::accumulate>(
          static_cast<int>(smaller(kPanelRows, at.keys - j)), static_cast<int>(columns - d),
          by_keys ? cells + j * kPairPitch + row : cells + row * kCellPitch + j,
          by_keys ? kPairPitch : kCellPitch, values + row * value_pitch + d, value_pitch,
          sum + j * sum_pitch + d, sum_pitch, depth_of<Arithmetic>(last - first),
          {kPairPlane, kRowPlane * value_pitch});
    }
  }
}

/// dQ[rows x qk_dim] += dS K.
template <class Arithmetic>
void add_query_gradients(const BackwardPass& pass, const BackwardTile& t, const TilePlace& at,
                         Real* sum) {
  constexpr int64_t kPanelRows = Arithmetic::kPanelRows;
  for (int64_t panel = 0; panel < at.rows; panel += kPanelRows) {
    const int rows = static_cast<int>(smaller(kPanelRows, at.rows - panel));
    const Interval columns = t.computed[panel / kPanelRows];
    if (columns.lo >= columns.hi) continue;
    const int64_t depth = smaller(columns.hi, at.keys) - columns.lo;
    // A shorter panel is computed as a longer one, whose rows past the end belong to somebody else.
    const size_t bytes = static_cast<size_t>(rows * t.q_columns) * sizeof(Real);
    Real* out = sum + panel * t.q_columns;
    Real* into = rows == kPanelRows ? out : t.spill;
    if (into != out) __builtin_memcpy(into, out, bytes);
    for (int64_t d = 0; d < pass.a.qk_dim; d += kPanelColumns) {
      constexpr int64_t kPack = Arithmetic::kPack, kParts = Arithmetic::kParts;
      multiply_panel<Arithmetic, Lies::by_rows, Into::accumulate>(
          rows, static_cast<int>(pass.a.qk_dim - d),
          t.d_s_keys + (panel * kCellPitch + columns.lo) / kPack, kCellPitch / kPack,
          t.k_rows + (kParts * d * kBackwardKeys + columns.lo * kPanelColumns) / kPack,
          kPanelColumns, into + d, t.q_columns, depth_of<Arithmetic>(depth),
          {kKeysPlane, kBackwardKeys * kPanelColumns / kPack});
    }
    if (into != out) __builtin_memcpy(out, into, bytes);
  }
}

/// kLanes numbers of row j of the packed keys, from column d on.
Float key_numbers(Singles, const BackwardTile& t, int64_t j, int64_t d) {
  return load(t.k_rows + d / kPanelColumns * kPanelColumns * kBackwardKeys + j * kPanelColumns +
              d % kPanelColumns);
}
Float d_s_numbers(Singles, const BackwardTile& t, int64_t r, int64_t j) {
  return load(t.d_s + r * kCellPitch + j);
}
#if defined(HEDDLE_CPU_LEVEL_BF16)
Float key_numbers(Pairs, const BackwardTile& t, int64_t j, int64_t d) {
  const Float pairs = load(t.k_rows + d / kPanelColumns * kPanelColumns * (kBackwardKeys / 2) +
                           j / 2 * kPanelColumns + d % kPanelColumns);
  return j % 2 == 0 ? low_of_pairs(pairs) : high_of_pairs(pairs);
}
Float d_s_numbers(Pairs, const BackwardTile& t, int64_t r, int64_t j) {
  return load_bf16(reinterpret_cast<const uint16_t*>(t.d_s_keys) + r * kCellPitch + j);
}
template <int kPlanes>
Float key_numbers(Parts<kPlanes>, const BackwardTile& t, int64_t j, int64_t d) {
  const Real* const panel = t.k_rows +
                            d / kPanelColumns * kPanelColumns * kPlanes * (kBackwardKeys / 2) +
                            j / 2 * kPanelColumns + d % kPanelColumns;
  Float sum = zero();
  for (int n = kPlanes - 1; n >= 0; --n) {
    const Float pairs = load(panel + n * (kBackwardKeys / 2) * kPanelColumns);
    sum = add(sum, j % 2 == 0 ? low_of_pairs(pairs) : high_of_pairs(pairs));
  }
  return sum;
}
template <int kPlanes>
Float d_s_numbers(Parts<kPlanes>, const BackwardTile& t, int64_t r, int64_t j) {
  const uint16_t* const row = reinterpret_cast<const uint16_t*>(t.d_s_keys) + r * kCellPitch + j;
  Float sum = zero();
  for (int n = kPlanes - 1; n >= 0; --n) sum = add(sum, load_bf16(row + n * kKeysPlane * 2));
  return sum;
}
#endif

/// Adds the tile's share of rowsum(dS), of dS as the products have it, and of the mean key.
template <class Arithmetic>
void sum_rows_and_keys(const BackwardTile& t, const TilePlace& at, Real* d_s_sum, Real* mean_key) {
  Interval seen{kBackwardKeys, 0};
  for (int64_t r = 0; r < at.rows; ++r) {
    const Interval columns = t.computed[r / Arithmetic::kPanelRows];
    Float sum = zero();
    for (int64_t j = columns.lo; j < columns.hi; j += kLanes)
      sum = add(sum, d_s_numbers(Arithmetic(), t, r, j));
    d_s_sum[r] += sum_of_lanes(sum);
    if (columns.lo < columns.hi) seen = {smaller(seen.lo, columns.lo), larger(seen.hi, columns.hi)};
  }
  Real weights[kBackwardKeys];
  for (int64_t j = seen.lo; j < seen.hi; j += kLanes) {
    Float sum = zero();
    for (int64_t r = 0; r < at.rows; ++r) sum = add(sum, load(t.p + r * kCellPitch + j));
    store(weights + j, sum);
  }
  const int64_t last = smaller(seen.hi, at.keys);
  for (int64_t d = 0; d < t.q_columns; d += 2 * kLanes) {
    Float first = load(mean_key + d), second = load(mean_key + d + kLanes);
    for (int64_t j = seen.lo; j < last; ++j) {
      if (weights[j] == 0) continue;  // a key out of sight may hold anything
      const Float weight = all(weights[j]);
      first = multiply_add(weight, key_numbers(Arithmetic(), t, j, d), first);
      second = multiply_add(weight, key_numbers(Arithmetic(), t, j, d + kLanes), second);
    }
    store(mean_key + d, first);
    store(mean_key + d + kLanes, second);
  }
  for (int64_t j = seen.lo; j < last; ++j) mean_key[t.q_columns] += weights[j];
}

Real sum_of(const Real* x, const ScoreCells& cells) {
  Float sum = zero();
  for (int64_t j = cells.first; j < cells.last; j += kLanes) sum = add(sum, load(x + j));
  return sum_of_lanes(sum);
}

/// Where a task adds up what it has of the rows from `i0` on.
struct QuerySums {
  Real *d_q = nullptr, *d_s = nullptr, *weight = nullptr, *mean_key = nullptr;
};

/// False of numbers that the arithmetic does not take.
template <class Arithmetic>
bool visit_tile(const BackwardPass& pass, const TilePlace& at, BackwardTile& t,
                const QuerySums& sums) {
  const AttentionArguments& a = pass.a;
  if (!load_rows<Arithmetic>(pass, at, t)) return true;
  if (!takes<Arithmetic>(t.q, at.rows, t.q_pitch, depth_of<Arithmetic>(a.qk_dim)) ||
      !takes<Arithmetic>(t.d_o, at.rows, t.o_pitch, depth_of<Arithmetic>(a.v_dim)))
    return false;
  convert_rows(Arithmetic(), pass, at, t);
  const bool drops = a.dropout.kind != DropoutKind::none;
  differentiate_tile<Arithmetic>(
      pass, at, t, [&](int64_t r, const ScoreCells& cells, Real* p, Real* d_s) {
        if (sums.weight) sums.weight[r] += sum_of(p, cells);
        if (!pass.d_dot.is_identity) {
          const ScoreValue d_dot = evaluate(pass.d_dot, cells, t.dots, d_s, t.scratch);
          for (int64_t j = cells.first; j < cells.last; j += kLanes)
            store(d_s + j, select(equal(load(p + j), zero()), zero(), value_at(d_dot, j)));
        }
        if (!drops || !pass.d_v) return;
        for (int64_t j = cells.first; j < cells.last; j += kLanes)
          store(p + j, multiply(load(p + j), load(t.factors + j)));
      });
  convert_cells(Arithmetic(), at, t);
  constexpr bool kPairs = Arithmetic::kPack == 2;
  if (pass.d_v) {
    add_key_gradients<Arithmetic>(t, at, t.p_rows, t.d_o_rows, kPairs ? t.o_columns : t.o_pitch,
                                  a.v_dim, t.d_v, t.o_columns);
  }
  if (pass.d_k) {
    add_key_gradients<Arithmetic>(t, at, t.d_s_rows, t.q_rows, kPairs ? t.q_columns : t.q_pitch,
                                  a.qk_dim, t.d_k, t.q_columns);
  }
  if (pass.d_q) add_query_gradients<Arithmetic>(pass, t, at, sums.d_q);
  if (pass.d_s_sum) sum_rows_and_keys<Arithmetic>(t, at, sums.d_s, sums.mean_key);
  return true;
}

/// Writes rows j0 .. of dK or dV: the sums, or zeros past the keys' length (dense only).
void write_key_gradients(const View* v, const RopePass* rope, const TilePlace& at, int64_t head,
                         int64_t end, Real* sum, int64_t pitch, Real factor) {
  if (!v) return;
  for (int64_t j = at.j0; j < end; ++j) {
    Real* row = sum + (j - at.j0) * pitch;
    if (j >= at.j0 + at.keys) {
      if (!v->ragged) write_row_of(*v, at.b, head, j, 0);
      if (rope && rope->out && !rope->out->ragged) write_row_of(*rope->out, at.b, head, j, 0);
      continue;
    }
    if (rope) {
      for (int64_t d = 0; d < v->dims[3]; ++d) row[d] *= factor;
      if (rope->out) write_row(*rope->out, at.b, head, j, row, 1);
      rotate_row(*rope, at.b, j, v->dims[3], row);
      write_row(*v, at.b, head, j, row, 1);
    } else {
      write_row(*v, at.b, head, j, row, factor);
    }
  }
}

/// Whether the arithmetic takes the numbers of a block that pack_transposed() has packed.
template <class Arithmetic>
bool takes_packed(const Real* panels, int64_t keys, int64_t columns) {
  return takes<Arithmetic>(panels, round_up(keys, kPanelColumns) / kPanelColumns,
                           words_of<Arithmetic>(columns) * kPanelColumns,
                           depth_of<Arithmetic>(columns) * kPanelColumns);
}

/// False if there are numbers that the arithmetic does not take: the task is then to be done anew.
template <class Arithmetic>
bool run(const BackwardPass& pass, const BackwardTask& task, void* memory) {
  const AttentionArguments& a = pass.a;
  BackwardTile t = tile_in(pass.scratch, memory);
  if constexpr (Arithmetic::kPack == 1)
    t.q_rows = t.q, t.d_o_rows = t.d_o, t.p_rows = t.p, t.d_s_rows = t.d_s_keys = t.d_s;
  const Lengths lengths = lengths_of(a, task.b);
  const int64_t per_k = a.q_heads / a.k_heads, per_v = a.q_heads / a.v_heads;

  const int64_t heads = a.batch * a.q_heads, pitch = pass.mean_key_pitch();
  const auto sums_of = [&](int64_t h, int64_t i) {
    const int64_t row = task.chunk * heads * a.q_length + query_row(pass, task.b, h, i);
    const int64_t tile = task.chunk * heads * row_tiles(pass) + tile_row(pass, task.b, h, i);
    QuerySums sums;
    if (pass.d_q) sums.d_q = pass.d_q_sum + row * t.q_columns;
    if (pass.d_s_sum) sums.d_s = pass.d_s_sum + row, sums.mean_key = pass.mean_key + tile * pitch;
    if (pass.weight_sum) sums.weight = pass.weight_sum + row;
    return sums;
  };
  for (int64_t h = task.first_head; pass.d_q && h < task.first_head + pass.heads; ++h) {
    const QuerySums sums = sums_of(h, 0);
    fill(sums.d_q, lengths.q * t.q_columns, 0);
    if (sums.d_s) fill(sums.d_s, lengths.q, 0), fill(sums.mean_key, row_tiles(pass) * pitch, 0);
    if (sums.weight) fill(sums.weight, lengths.q, 0);
  }

  const int64_t chunk_end = smaller(a.kv_length, (task.chunk + 1) * pass.chunk_keys);
  for (int64_t j0 = task.chunk * pass.chunk_keys; j0 < chunk_end; j0 += kBackwardKeys) {
    const int64_t end = smaller(chunk_end, j0 + kBackwardKeys);
    TilePlace at{task.b, 0, 0, 0, j0, larger(0, smaller(end, lengths.kv) - j0), lengths};
    for (int64_t first = task.first_head; first < task.first_head + pass.heads;
         first += pass.group) {
      const int64_t k_head = first / per_k, v_head = first / per_v;
      if (first % per_k == 0) {
        pack_transposed<Arithmetic>({a.k, task.b, k_head, j0, at.keys}, a.qk_dim, t.k_columns,
                                    t.staging);
        if (!takes_packed<Arithmetic>(t.k_columns, at.keys, a.qk_dim)) return false;
        if (pass.d_q)
          pack_rows<Arithmetic>({a.k, task.b, k_head, j0, at.keys}, a.qk_dim, kBackwardKeys,
                                t.k_rows, t.staging);
        if (pass.d_k) fill(t.d_k, kBackwardKeys * t.q_columns, 0);
      }
      if (first % per_v == 0) {
        pack_transposed<Arithmetic>({a.v, task.b, v_head, j0, at.keys}, a.v_dim, t.v_columns,
                                    t.staging);
        if (!takes_packed<Arithmetic>(t.v_columns, at.keys, a.v_dim)) return false;
        if (pass.d_v) fill(t.d_v, kBackwardKeys * t.o_columns, 0);
      }
      for (at.h = first; at.keys > 0 && at.h < first + pass.group; ++at.h) {
        for (at.i0 = 0; at.i0 < lengths.q; at.i0 += kBackwardRows) {
          at.rows = smaller(kBackwardRows, lengths.q - at.i0);
          if (!visit_tile<Arithmetic>(pass, at, t, sums_of(at.h, at.i0))) return false;
        }
      }
      if ((first + pass.group) % per_k == 0)
        write_key_gradients(pass.d_k, pass.d_k_rope, at, k_head, end, t.d_k, t.q_columns,
                            static_cast<Real>(a.scale));
      if ((first + pass.group) % per_v == 0)
        write_key_gradients(pass.d_v, nullptr, at, v_head, end, t.d_v, t.o_columns, 1);
    }
  }
  return true;
}

#if defined(HEDDLE_CPU_LEVEL_BF16)
template <class Arithmetic>
bool run_by_tiles(const BackwardPass& pass, const BackwardTask& task, void* memory) {
  const TileSession session;
  return run<Arithmetic>(pass, task, memory);
}
#endif

/// dQ -= what rounding left of rowsum(dS) times the mean key: dS (K - mean key), with no difference
/// of keys rounded. `mean` has room for a key.
void take_off_remainder(const BackwardPass& pass, int64_t b, int64_t h, int64_t i, Real* d_q,
                        Real* mean) {
  const AttentionArguments& a = pass.a;
  const int64_t heads = a.batch * a.q_heads, columns = round_up(a.qk_dim, kPanelColumns);
  const int64_t pitch = pass.mean_key_pitch();
  fill(mean, columns, 0);
  if (statistics_of(a, b, h, i).shift == -kInfinity) return;
  Real remainder = -sum_of_d_s(pass, b, h, i), weight = 0, of_row = pass.weight_sum ? 0 : 1;
  for (int64_t n = 0; n < pass.chunks; ++n) {
    const int64_t row = n * heads * a.q_length + query_row(pass, b, h, i);
    remainder += pass.d_s_sum[row];
    if (pass.weight_sum) of_row += pass.weight_sum[row];
    const Real* from =
        pass.mean_key + (n * heads * row_tiles(pass) + tile_row(pass, b, h, i)) * pitch;
    for (int64_t d = 0; d < columns; d += kLanes)
      store(mean + d, add(load(mean + d), load(from + d)));
    weight += from[columns];
  }
  if (!(weight > 0)) return;
  const Float factor = all(remainder * of_row / weight), most = all(kInfinity);
  for (int64_t d = 0; d < columns; d += kLanes) {
    const Float x = multiply(load(mean + d), factor);
    // Keys whose sum is beyond f32 have no mean.
    store(d_q + d, subtract(load(d_q + d), select(less(absolute(x), most), x, zero())));
  }
}

/// The sum of a * b, rounded about once.
#if defined(HEDDLE_CPU_LEVEL_F64)
double exact_dot(const double* a, const double* b, int64_t count) {
  double sum = 0, lost = 0;
  for (int64_t d = 0; d < count; ++d) {
    const double product = a[d] * b[d];
    lost += multiply_add(a[d], b[d], -product) + add_to(sum, product);
  }
  return with_lost(sum, lost);
}
#else
float exact_dot(const float* a, const float* b, int64_t count) {
  double sum = 0;
  for (int64_t d = 0; d < count; ++d) sum += static_cast<double>(a[d]) * b[d];
  return static_cast<float>(sum);
}
#endif

}  // namespace

void row_dots(const BackwardPass& pass, int64_t b, int64_t h, int64_t first, int64_t last,
              void* memory) {
  const AttentionArguments& a = pass.a;
  Real* const o = static_cast<Real*>(memory);
  Real* const d_o = o + round_up(a.v_dim, kLanes);
  fill(o, 2 * round_up(a.v_dim, kLanes), 0);
  const Lengths lengths = lengths_of(a, b);
  for (int64_t i = first; i < last; ++i) {
    Real &out = pass.row_dot[query_row(pass, b, h, i)],
         &of_one_key = pass.one_key_rest[query_row(pass, b, h, i)];
    out = of_one_key = 0;
    if (i >= lengths.q) continue;
    if (statistics_of(a, b, h, i).shift == -kInfinity) continue;
    read_row(*a.o, b, h, i, o);
    read_row(*pass.d_o, b, h, i, d_o);
    out = exact_dot(d_o, o, a.v_dim);
    // In the order in which dO V^T is summed.
    const int64_t part = columns_at_once(a.v_dim);
    for (int64_t first_column = 0; first_column < a.v_dim; first_column += part) {
      Real sum = 0;
      for (int64_t d = first_column; d < smaller(first_column + part, a.v_dim); ++d)
        sum = multiply_add(d_o[d], o[d], sum);
      of_one_key += sum;
    }
    of_one_key -= out;
    if (pass.d_stats) out -= *reinterpret_cast<const Real*>(row_address(*pass.d_stats, b, h, i));
  }
}

void sink_gradient(const BackwardPass& pass, int64_t h) {
  const AttentionArguments& a = pass.a;
  const Real sink = number_at(*a.sink, h * a.sink->stride[1]);
  double sum = 0;
  for (int64_t b = 0; b < a.batch; ++b) {
    const Lengths lengths = lengths_of(a, b);
    for (int64_t i = 0; i < lengths.q; ++i) {
      const auto [shift, weight] = statistics_of(a, b, h, i);
      if (shift == -kInfinity) continue;
      const double probability = __builtin_exp(static_cast<double>(sink) - shift) * weight;
      sum -= probability * pass.row_dot[query_row(pass, b, h, i)];
    }
  }
  write_row_of(*pass.d_sink, 0, h, 0, static_cast<Real>(sum));
}

void backward(const BackwardPass& pass, const BackwardTask& task, void* memory) {
#if defined(HEDDLE_CPU_LEVEL_BF16)
  bool is_done = false;
  if (pass.products == Products::tiles) is_done = run_by_tiles<Tiles>(pass, task, memory);
  if (pass.products == Products::tiles_of_halves)
    is_done = run_by_tiles<Parts<2>>(pass, task, memory);
  if (pass.products == Products::pairs) is_done = run<Pairs>(pass, task, memory);
  if (is_done) return;
#endif
  run<Singles>(pass, task, memory);
}

void query_gradients(const BackwardPass& pass, int64_t b, int64_t h, int64_t first, int64_t last,
                     void* memory) {
  const AttentionArguments& a = pass.a;
  const int64_t columns = round_up(a.qk_dim, kPanelColumns),
                part = a.batch * a.q_heads * a.q_length;
  Real* const row = static_cast<Real*>(memory);
  const Lengths lengths = lengths_of(a, b);
  const RopePass* rope = pass.d_q_rope;
  for (int64_t i = first; i < last; ++i) {
    if (i >= lengths.q) {
      if (!pass.d_q->ragged) write_row_of(*pass.d_q, b, h, i, 0);
      if (rope && rope->out && !rope->out->ragged) write_row_of(*rope->out, b, h, i, 0);
      continue;
    }
    fill(row, columns, 0);
    for (int64_t n = 0; n < pass.chunks; ++n) {
      const Real* from = pass.d_q_sum + (n * part + query_row(pass, b, h, i)) * columns;
      for (int64_t d = 0; d < columns; d += kLanes)
        store(row + d, add(load(row + d), load(from + d)));
    }
    if (pass.d_s_sum) take_off_remainder(pass, b, h, i, row, row + columns);
    const SplitFactor scale = split(a.scale);
    for (int64_t d = 0; d < columns; d += kLanes) store(row + d, product(load(row + d), scale));
    if (rope) {
      if (rope->out) write_row(*rope->out, b, h, i, row, 1);
      rotate_row(*rope, b, i, a.qk_dim, row);
    }
    write_row(*pass.d_q, b, h, i, row, 1);
  }
}

}  // namespace heddle::engine::cpu::HEDDLE_CPU_LEVEL
