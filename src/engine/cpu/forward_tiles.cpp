#include "engine/cpu/forward_tiles.h"

#include <algorithm>
#include <numeric>

#include "core/rounding.h"
#include "engine/cpu/kernels.h"

namespace heddle::engine::cpu {

using problem::AttentionSizes;
using problem::AttentionStructure;

namespace {

/// Packing the keys costs about as much as visiting them with six rows (measured, Zen 4, d 64 and
/// 128: 0.35 cycles an element against 1/16 cycle a row and element).
constexpr double kPackingRows = 6;

/// Most rows whose queries and outputs stay in L2 beside a packed block of K and V. Its quarter
/// left over has room for the panel begun: 512 rows of d 128 are then one tile on 1 MiB, and pack
/// their keys once instead of twice (1.0 % of the avx2 kernel's instructions by callgrind).
int64_t rows_in_cache(const AttentionStructure& s, const MachineShape& machine) {
  const int64_t row_bytes = (s.qk_head_dim + s.v_head_dim) * int64_t{sizeof(float)};
  const int64_t rows = (machine.l2_bytes * 3 / 4 - kForwardKeys * row_bytes) / row_bytes;
  return std::max<int64_t>(divide_up(rows, machine.panel_rows), 8) * machine.panel_rows;
}

/// The number of tiles that keeps all workers busy for the least packing.
int64_t best_tile_count(int64_t rows, int64_t groups, int64_t least, const MachineShape& machine) {
  const int64_t most = std::max(least, divide_up(rows, machine.panel_rows));
  int64_t best = least;
  double best_time = 0;
  for (int64_t n = least; n <= std::min(most, least + 8 * machine.workers); ++n) {
    const int64_t tile = divide_up(divide_up(rows, n), machine.panel_rows) * machine.panel_rows;
    const int64_t turns = divide_up(groups * n, machine.workers);
    const double time = static_cast<double>(turns) * (static_cast<double>(tile) + kPackingRows);
    if (best_time == 0 || time < best_time * 0.99) best = n, best_time = time;
  }
  return best;
}

/// Keys that the rows of a tile see together, were every sequence as long as it may be.
int64_t work_of(const AttentionStructure& s, const AttentionSizes& z, int64_t first_row,
                int64_t last_row) {
  const auto seen = [&](int64_t row) {
    return problem::visible_keys(s.bounds, z.bound_constants, row, z.q_length, z.kv_length,
                                 [](size_t) { return 0; });
  };
  const auto size = [](problem::KeyInterval keys) {
    return std::max<int64_t>(0, keys.hi - keys.lo);
  };
  return size(seen(first_row)) + size(seen(last_row));
}

}  // namespace

ForwardTiles forward_tiles(const AttentionStructure& s, const AttentionSizes& z,
                           const MachineShape& machine) {
  ForwardTiles t{};
  t.group = std::gcd(z.q_heads / z.k_heads, z.q_heads / z.v_heads);
  const int64_t rows = std::max<int64_t>(1, t.group * z.q_length),
                groups = std::max<int64_t>(1, z.batch * z.q_heads / std::max<int64_t>(1, t.group));
  const int64_t least = divide_up(rows, rows_in_cache(s, machine));
  t.tiles = best_tile_count(rows, groups, least, machine);
  t.tile_rows = divide_up(divide_up(rows, t.tiles), machine.panel_rows) * machine.panel_rows;
  t.tiles = divide_up(rows, t.tile_rows);

  t.splits = 1;
  t.split_keys = std::max<int64_t>(1, divide_up(z.kv_length, kForwardKeys)) * kForwardKeys;
  const int64_t blocks = t.split_keys / kForwardKeys;
  // Too few tiles for the workers (decoding): the keys are shared out too.
  if (t.tiles == 1 && groups < 2 * machine.workers && blocks >= 4) {
    const int64_t wanted = std::min(divide_up(2 * machine.workers, groups), blocks / 2);
    if (groups % machine.workers != 0 && wanted > 1) {
      t.split_keys = divide_up(blocks, wanted) * kForwardKeys;
      t.splits = divide_up(z.kv_length, t.split_keys);
    }
  }

  t.order.resize(static_cast<size_t>(t.tiles));
  std::iota(t.order.begin(), t.order.end(), 0);
  std::vector<int64_t> work(t.order.size());
  for (int64_t n = 0; n < t.tiles; ++n) {
    const int64_t first = n * t.tile_rows / t.group;
    const int64_t last =
        std::max<int64_t>(first, std::min((n + 1) * t.tile_rows / t.group, z.q_length) - 1);
    work[static_cast<size_t>(n)] = work_of(s, z, first, last);
  }
  std::stable_sort(t.order.begin(), t.order.end(), [&](int32_t a, int32_t b) {
    return work[static_cast<size_t>(a)] > work[static_cast<size_t>(b)];
  });
  return t;
}

}  // namespace heddle::engine::cpu
