// How a forward pass is cut into tiles of query rows.
#include "engine/cpu/forward_tiles.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "engine/cpu/machine.h"
#include "engine_cpu/problems.h"

namespace heddle::engine::cpu {
namespace {

using testing::causal_attention;

ForwardTiles tiles_of(const problem::AttentionProblem& p, const MachineShape& machine) {
  return forward_tiles(p.structure, p.sizes, machine);
}

TEST(ForwardTiles, CoverEveryRowOnceInWholePanels) {
  for (int panel_rows : {6, 14})
    for (int workers : {1, 2, 16})
      for (int64_t length : {1, 13, 512, 2000, 4096}) {
        const ForwardTiles t = tiles_of(causal_attention(DataType::f32, 1, 8, 2, length, 64),
                                        {workers, 1 << 20, panel_rows});
        const int64_t rows = t.group * length;
        EXPECT_EQ(t.group, 4);
        EXPECT_EQ(t.tile_rows % panel_rows, 0);
        EXPECT_GE(t.tiles * t.tile_rows, rows);
        EXPECT_LT((t.tiles - 1) * t.tile_rows, rows);
        std::vector<int32_t> each(t.order.size());
        std::iota(each.begin(), each.end(), 0);
        EXPECT_TRUE(std::is_permutation(t.order.begin(), t.order.end(), each.begin(), each.end()));
      }
}

// Every tile packs all keys it sees: heads whose queries and outputs stay in L2 are one.
TEST(ForwardTiles, AreNotMoreThanTheCacheAsksFor) {
  for (int panel_rows : {6, 14}) {
    const MachineShape machine{2, 1 << 20, panel_rows};
    const auto tiles = [&](int64_t length, int32_t head_dim) {
      return tiles_of(causal_attention(DataType::f32, 1, 8, 8, length, head_dim), machine).tiles;
    };
    EXPECT_EQ(tiles(512, 64), 1);
    EXPECT_EQ(tiles(512, 128), 1);
    EXPECT_EQ(tiles(1024, 128), 2);
  }
}

// What a workspace has room for.
TEST(ForwardTiles, AreWithinTheMostOfAnyMachine) {
  for (int panel_rows : {6, 14})
    for (int64_t batch : {1, 3, 40})
      for (int64_t q_length : {1, 5, 40, 63, 64, 65, 512, 2000, 9000})
        for (int64_t kv_length : {1, 900, 1025, 30000}) {
          auto p = causal_attention(DataType::f32, batch, 6, 3, q_length, 64);
          p.sizes.kv_length = kv_length;
          const MostForwardTiles most = most_forward_tiles(p.structure, p.sizes, panel_rows);
          for (int workers = 1; workers <= kMostWorkers; workers += workers / 8 + 1)
            for (int64_t l2_bytes : {1 << 18, 1 << 20, 1 << 21, 1 << 24}) {
              const ForwardTiles t = tiles_of(p, {workers, l2_bytes, panel_rows});
              const int64_t groups = batch * 6 / t.group, tasks = groups * t.tiles * t.splits;
              EXPECT_LE(std::min<int64_t>(workers, tasks), most.workers);
              EXPECT_LE(std::min<int64_t>(workers, tasks) * t.tile_rows, most.rows);
              if (t.splits == 1) continue;
              EXPECT_LE(groups * t.splits, most.parts);
              EXPECT_LE(t.group * q_length, most.part_rows);
            }
        }
}

TEST(ForwardTiles, OfCausalRowsRunTheLongestFirst) {
  const ForwardTiles t =
      tiles_of(causal_attention(DataType::f32, 1, 8, 8, 4096, 64), {2, 1 << 20, 14});
  EXPECT_GT(t.tiles, 1);
  EXPECT_TRUE(std::is_sorted(t.order.rbegin(), t.order.rend()));
}

// Of rows that see more keys and rows that see fewer, the workers have as much to do as one
// another.
TEST(ForwardTiles, ShareOutCausalRows) {
  for (int64_t heads : {1, 2, 8, 12}) {
    for (int workers : {2, 16, 64}) {
      const auto p = causal_attention(DataType::bf16, 1, heads, heads, 4096, 64);
      const ForwardTiles t = tiles_of(p, {workers, 2 << 20, 32});
      std::vector<int64_t> ends(static_cast<size_t>(workers));
      int64_t total = 0;
      for (int32_t tile : t.order) {
        const int64_t first = tile * t.tile_rows,
                      last = std::min<int64_t>(first + t.tile_rows, 4096);
        const int64_t cells = (last * (last + 1) - first * (first + 1)) / 2;
        for (int64_t head = 0; head < heads; ++head) {
          *std::min_element(ends.begin(), ends.end()) += cells;
          total += cells;
        }
      }
      EXPECT_LE(static_cast<double>(*std::max_element(ends.begin(), ends.end())),
                1.3 * static_cast<double>(total) / workers)
          << heads << " heads, " << workers << " workers, " << t.tiles << " tiles";
    }
  }
}

}  // namespace
}  // namespace heddle::engine::cpu
