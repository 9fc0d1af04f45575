#include "engine/cpu/forward_tiles.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <queue>

#include "core/rounding.h"
#include "engine/cpu/kernels.h"
#include "engine/cpu/machine.h"

namespace heddle::engine::cpu {

using problem::AttentionSizes;
using problem::AttentionStructure;

namespace {

/// Packing the keys costs about as much as visiting them with six rows (measured, Zen 4, d 64 and
/// 128: 0.35 cycles an element against 1/16 cycle a row and element).
constexpr double kPackingRows = 6;

/// Larger caches gain nothing: up to d 256 packing the keys is by then about a hundredth of a
/// tile's work.
constexpr int64_t kMostL2Bytes = 2 << 20;

/// Keys are split for tiles of so few rows alone: more of them are cut into tiles that keep the
/// workers busy as well, and parts of their outputs would fill the workspace.
constexpr int64_t kMostSplitRows = 64;
/// Keys are split only where there are so many blocks of them, and into parts of two or more.
constexpr int64_t kLeastSplitBlocks = 4, kLeastBlocksOfPart = 2;

/// Most rows whose queries and outputs stay in L2 beside a packed block of K and V. Its quarter
/// left over has room for the panel begun: 512 rows of d 128 are then one tile on 1 MiB, and pack
/// their keys once instead of twice (1.0 % of the avx2 kernel's instructions by callgrind).
int64_t rows_in_cache(const AttentionStructure& s, int64_t l2_bytes, int panel_rows,
                      int parts = 1) {
  const bool is_f64 = s.q != problem::kAbsent && s.type(s.q).dtype == DataType::f64;
  const int64_t number_bytes = is_f64 ? 8 : 4;
  const int64_t packed_bytes = std::max(number_bytes, int64_t{2} * parts);
  const int64_t row_bytes = s.qk_head_dim * packed_bytes + s.v_head_dim * number_bytes;
  const int64_t block_bytes = kForwardKeys * (s.qk_head_dim + s.v_head_dim) * packed_bytes;
  const int64_t rows = (std::min(l2_bytes, kMostL2Bytes) * 3 / 4 - block_bytes) / row_bytes;
  return std::max<int64_t>(divide_up(rows, panel_rows), 8) * panel_rows;
}

/// Rows of a group of heads, and groups; one at least of each.
struct Groups {
  int64_t heads, rows, count;
};
Groups groups_of(const AttentionSizes& z) {
  const int64_t heads = std::gcd(z.q_heads / z.k_heads, z.q_heads / z.v_heads);
  return {heads, std::max<int64_t>(1, heads * z.q_length),
          std::max<int64_t>(1, z.batch * z.q_heads / std::max<int64_t>(1, heads))};
}

int64_t key_blocks(const AttentionSizes& z) {
  return std::max<int64_t>(1, divide_up(z.kv_length, kForwardKeys));
}

/// Keys that the rows of a tile see together, were every sequence as long as it may be.
int64_t work_of(const AttentionStructure& s, const AttentionSizes& z, int64_t first_row,
                int64_t last_row) {
  const auto seen = [&](int64_t row) {
    return problem::visible_keys(s.bounds, z.bound_constants, row, z.q_length, z.kv_length);
  };
  const auto size = [](problem::KeyInterval keys) {
    return std::max<int64_t>(0, keys.hi - keys.lo);
  };
  return size(seen(first_row)) + size(seen(last_row));
}

/// The longest tiles of all groups first.
std::vector<double> works_of(const AttentionStructure& s, const AttentionSizes& z, int64_t heads,
                             int64_t rows, int64_t tile) {
  std::vector<double> works;
  for (int64_t first = 0; first < rows; first += tile) {
    const int64_t last = std::min(first + tile, rows) - 1;
    const double both = static_cast<double>(work_of(s, z, first / heads, last / heads));
    works.push_back((static_cast<double>(last + 1 - first) + kPackingRows) * both / 2);
  }
  std::sort(works.begin(), works.end(), std::greater<>());
  return works;
}

/// When the last worker is done with tasks that are taken in this order by whoever is free.
double last_end(const std::vector<double>& works, int64_t groups, int workers) {
  std::priority_queue<double, std::vector<double>, std::greater<>> ends(
      std::greater<>(), std::vector<double>(static_cast<size_t>(workers), 0));
  double last = 0;
  for (double work : works) {
    for (int64_t n = 0; n < groups; ++n) {
      const double end = ends.top() + work;
      ends.pop();
      ends.push(end);
      last = std::max(last, end);
    }
  }
  return last;
}

/// Turns that workers take at most where the number of tiles is weighed.
constexpr int64_t kMostTurns = 8;

/// The number of tiles that keeps all workers busy for the least packing. Rows that see as many
/// keys as others are tiles of one length: then the best fill whole turns. Where bounds make some
/// longer, as causal ones do, turns do not end together: of 8 heads of 4096 rows on 16 workers, in
/// two tiles each, half the workers would have three times the others' work.
int64_t best_tile_count(const AttentionStructure& s, const AttentionSizes& z, const Groups& of,
                        int64_t least, const MachineShape& machine) {
  const int64_t most = std::max(least, divide_up(of.rows, machine.panel_rows));
  int64_t best = least;
  double best_time = 0;
  const auto weigh = [&](int64_t n) {
    const int64_t tile = divide_up(divide_up(of.rows, n), machine.panel_rows) * machine.panel_rows;
    const int64_t turns = divide_up(of.count * n, machine.workers);
    const double time =
        s.bounds.empty()
            ? static_cast<double>(turns) * (static_cast<double>(tile) + kPackingRows)
            : last_end(works_of(s, z, of.heads, of.rows, tile), of.count, machine.workers);
    if (best_time == 0 || time < best_time * 0.99) best = n, best_time = time;
  };
  if (of.count * least > kMostTurns * machine.workers) return least;
  weigh(least);
  for (int64_t turns = 1; turns <= kMostTurns; ++turns) {
    const int64_t n = turns * machine.workers / of.count;
    if (n > least && n <= most) weigh(n);
  }
  return best;
}

}  // namespace

ForwardTiles forward_tiles(const AttentionStructure& s, const AttentionSizes& z,
                           const MachineShape& machine) {
  ForwardTiles t{};
  const Groups of = groups_of(z);
  const auto [heads, rows, groups] = of;
  t.group = heads;
  const int64_t least = divide_up(
      rows, std::min(machine.most_rows,
                     rows_in_cache(s, machine.l2_bytes, machine.panel_rows, machine.parts)));
  t.tiles = best_tile_count(s, z, of, least, machine);
  t.tile_rows = divide_up(divide_up(rows, t.tiles), machine.panel_rows) * machine.panel_rows;
  t.tiles = divide_up(rows, t.tile_rows);

  t.splits = 1;
  const int64_t blocks = key_blocks(z);
  // Too few tiles for the workers (decoding): the keys are shared out too, into four parts for
  // each, for not all of a machine that others use are as fast. With two, a step of 32 heads on 8,
  // 8192 keys of d 128, took 16 threads of a Sapphire Rapids 0.49 ms in f32, 0.33 in bf16, 0.41 in
  // f8e4m3, 0.19 in int8; with four 0.40, 0.29, 0.34 and 0.175.
  if (t.tiles == 1 && rows <= kMostSplitRows && groups < 2 * machine.workers &&
      blocks >= kLeastSplitBlocks) {
    const int64_t wanted =
        std::min(divide_up(4 * machine.workers, groups), blocks / kLeastBlocksOfPart);
    if (groups % machine.workers != 0 && wanted > 1) t.splits = wanted;
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

MostForwardTiles most_forward_tiles(const AttentionStructure& s, const AttentionSizes& z,
                                    int panel_rows, int64_t most_rows) {
  const auto [heads, rows, all_groups] = groups_of(z);
  const int64_t groups = std::min<int64_t>(all_groups, 4 * kMostWorkers);  // more change nothing
  const auto tile_of = [&](int64_t count) { return round_up(count, panel_rows); };
  const int64_t most_splits =
      key_blocks(z) < kLeastSplitBlocks ? 1 : key_blocks(z) / kLeastBlocksOfPart;
  const int64_t panels = divide_up(rows, panel_rows);

  MostForwardTiles most{};
  most.workers = std::min<int64_t>(kMostWorkers, groups * std::max(panels, most_splits));
  // Tiles of a group exceed its rows by less than one tile, which is half the rows if there are
  // two; parts of the keys have the rows once each.
  const int64_t of_tiles = groups * tile_of(rows + rows / 2 + 1);
  const int64_t of_parts = most.workers * tile_of(std::min(rows, kMostSplitRows));
  const int64_t tile =
      std::min({tile_of(rows), rows_in_cache(s, kMostL2Bytes, panel_rows), most_rows});
  most.rows = std::max(std::min(most.workers * tile, of_tiles), of_parts);
  // Fewer than 2 workers groups, each in at most 4 workers / groups parts, rounded up.
  if (most_splits > 1) most.parts = std::min<int64_t>(6 * kMostWorkers, groups * most_splits);
  most.part_rows = std::min(rows, kMostSplitRows);
  return most;
}

}  // namespace heddle::engine::cpu
