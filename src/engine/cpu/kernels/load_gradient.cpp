// The gradient of an operand that the score loads (dBias). A task owns one tile of the gradient and
// visits, in a fixed order, every tile of cells that the operand was broadcast to. This recomputes
// the scores; in return nothing of size rows x keys is ever kept, and sums repeat bit for bit.
#include "engine/cpu/kernels/backward.h"
#include "engine/cpu/kernels/backward_tile.h"

namespace heddle::engine::cpu::HEDDLE_CPU_LEVEL {

namespace {

struct Range {
  int64_t first, last;
};
/// The one index the task has, or all of them where the gradient's dim is 1.
Range range_of(int64_t gradient_dim, int64_t index, int64_t extent) {
  return gradient_dim > 1 ? Range{index, smaller(index + 1, extent)} : Range{0, extent};
}

void add_tile(const BackwardPass& pass, const Score& derivative, const TilePlace& at,
              BackwardTile& t, Real* sum) {
  if (!load_rows<Singles>(pass, at, t)) return;
  differentiate_tile<Singles>(
      pass, at, t, [&](int64_t r, const ScoreCells& cells, const Real* p, Real* d_s) {
        const ScoreValue value = evaluate(derivative, cells, t.dots, d_s, t.scratch);
        Real* out = sum + r * kCellPitch;
        for (int64_t j = cells.first; j < cells.last; j += kLanes) {
          const Float here = select(equal(load(p + j), zero()), zero(), value_at(value, j));
          store(out + j, add(load(out + j), here));
        }
      });
}

/// Adds the tile's share of rowsum(dS).
void add_row_sums(const BackwardPass& pass, const TilePlace& at, BackwardTile& t) {
  if (!load_rows<Singles>(pass, at, t)) return;
  differentiate_tile<Singles>(
      pass, at, t, [&](int64_t r, const ScoreCells& cells, const Real*, const Real* d_s) {
        Float sum = zero();
        for (int64_t j = cells.first; j < cells.last; j += kLanes) sum = add(sum, load(d_s + j));
        pass.d_s_rest[query_row(pass, at.b, at.h, at.i0 + r)] += sum_of_lanes(sum);
      });
}

/// Sums the tile over its broadcast dims and writes what is left.
void write_tile(const View& g, const LoadGradientTask& task, const Real* sum, Real* row) {
  const int64_t rows = g.dims[2] > 1 ? smaller(kBackwardRows, g.dims[2] - task.i0) : 1;
  const int64_t columns = g.dims[3] > 1 ? smaller(kBackwardKeys, g.dims[3] - task.j0) : 1;
  for (int64_t r = 0; r < rows; ++r) {
    fill(row, kBackwardKeys, 0);
    for (int64_t n = r; n < (g.dims[2] > 1 ? r + 1 : kBackwardRows); ++n) {
      for (int64_t j = 0; j < kBackwardKeys; ++j) row[j] += sum[n * kCellPitch + j];
    }
    if (g.dims[3] == 1) {
      double total = 0;
      for (int64_t j = 0; j < kBackwardKeys; ++j) total += row[j];
      row[0] = static_cast<Real>(total);
    }
    char* out =
        row_address(g, task.b, task.h, task.i0 + r) + task.j0 * g.stride[3] * g.element_bytes;
    write_row(g.element, out, g.stride[3], g.element_bytes, columns, row, 1);
  }
}

/// Every tile of cells that the task's tile was broadcast to, with its keys and values packed.
template <class Visit>
void for_tiles(const BackwardPass& pass, const View& g, const LoadGradientTask& task,
               BackwardTile& t, const Visit& visit) {
  const AttentionArguments& a = pass.a;
  const Range batches = range_of(g.dims[0], task.b, a.batch),
              heads = range_of(g.dims[1], task.h, a.q_heads);
  for (int64_t b = batches.first; b < batches.last; ++b) {
    const Lengths lengths = lengths_of(a, b);
    for (int64_t h = heads.first; h < heads.last; ++h) {
      const int64_t k_head = h / (a.q_heads / a.k_heads), v_head = h / (a.q_heads / a.v_heads);
      const int64_t last_key = g.dims[3] > 1 ? smaller(lengths.kv, task.j0 + 1) : lengths.kv;
      const int64_t last_row = g.dims[2] > 1 ? smaller(lengths.q, task.i0 + 1) : lengths.q;
      for (int64_t j0 = task.j0; j0 < last_key; j0 += kBackwardKeys) {
        TilePlace at{b, h, 0, 0, j0, smaller(kBackwardKeys, lengths.kv - j0), lengths};
        pack_transposed<Singles>({a.k, b, k_head, j0, at.keys}, a.qk_dim, t.k_columns, t.staging);
        pack_transposed<Singles>({a.v, b, v_head, j0, at.keys}, a.v_dim, t.v_columns, t.staging);
        for (at.i0 = task.i0; at.i0 < last_row; at.i0 += kBackwardRows) {
          at.rows = smaller(kBackwardRows, lengths.q - at.i0);
          visit(at);
        }
      }
    }
  }
}

/// Makes D of the task's rows what their score gradients add up to exactly: what rounding leaves
/// of that sum would be multiplied by what a row's derivatives have in common, as scores that are
/// all large have in the gradient of their factor. The task has all keys of its rows.
void settle_rows(const BackwardPass& pass, const View& g, const LoadGradientTask& task,
                 BackwardTile& t) {
  const AttentionArguments& a = pass.a;
  const Range batches = range_of(g.dims[0], task.b, a.batch),
              heads = range_of(g.dims[1], task.h, a.q_heads);
  const auto for_rows = [&](const auto& visit) {
    for (int64_t b = batches.first; b < batches.last; ++b)
      for (int64_t h = heads.first; h < heads.last; ++h) {
        const int64_t rows = lengths_of(a, b).q;
        const int64_t last = g.dims[2] > 1 ? smaller(rows, task.i0 + kBackwardRows) : rows;
        for (int64_t i = task.i0; i < last; ++i) visit(b, h, i);
      }
  };
  for_rows([&](int64_t b, int64_t h, int64_t i) { pass.d_s_rest[query_row(pass, b, h, i)] = 0; });
  for_tiles(pass, g, task, t, [&](const TilePlace& at) { add_row_sums(pass, at, t); });
  const Real unit = a.log2_input ? static_cast<Real>(kLn2) : 1.0f;
  for_rows([&](int64_t b, int64_t h, int64_t i) {
    if (statistics_of(a, b, h, i).shift == -kInfinity) return;
    const int64_t row = query_row(pass, b, h, i);
    pass.row_dot[row] += (pass.d_s_rest[row] - sum_of_d_s(pass, b, h, i)) / unit;
  });
}

}  // namespace

void load_gradient(const BackwardPass& pass, const LoadGradientPass& load,
                   const LoadGradientTask& task, void* memory) {
  const View& g = *load.gradient;
  BackwardTile t = tile_in(pass.load_scratch, memory);
  if (pass.d_s_rest && g.dims[3] == 1) settle_rows(pass, g, task, t);
  fill(t.sum, kBackwardRows * kCellPitch, 0);
  for_tiles(pass, g, task, t,
            [&](const TilePlace& at) { add_tile(pass, load.derivative, at, t, t.sum); });
  write_tile(g, task, t.sum, t.dots);
}

}  // namespace heddle::engine::cpu::HEDDLE_CPU_LEVEL
