// What the host counts for the decode kernel, which a kernel would count in each warp.
#include "sm80/decode_keys.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "support/random.h"

namespace heddle::sm80 {
namespace {

using attention::Anchor;
using heddle::testing::Random;

TEST(DecodeKeys, QuotientsAreExact) {
  constexpr int kMost = 0x7fffffff;
  Random random(1);
  const auto expect_exact = [](int n, int divisor) {
    ASSERT_EQ(Divisor<true>::of(divisor).quotient(n), n / divisor) << n << " / " << divisor;
  };
  for (int divisor = 1; divisor <= 300; ++divisor)
    for (int n = 0; n <= 1000; ++n) expect_exact(n, divisor);
  for (int power = 0; power < 31; ++power) {
    for (int near : {-1, 0, 1}) {
      const int divisor = std::max(1, static_cast<int>((int64_t{1} << power) + near));
      for (int n : {0, 1, divisor - 1, divisor, kMost / divisor * divisor - 1,
                    kMost / divisor * divisor, kMost - 1, kMost})
        expect_exact(n, divisor);
    }
  }
  for (int count = 0; count < 200000; ++count) {
    const int divisor = static_cast<int>(random.integer(1, int64_t{1} << random.integer(1, 30)));
    const int multiple = static_cast<int>(random.integer(1, kMost / divisor)) * divisor;
    for (int n : {multiple - 1, multiple, static_cast<int>(random.integer(0, kMost))})
      expect_exact(n, divisor);
  }
}

TEST(DecodeKeys, EveryTileIsOfTheBlockThatMeetsIt) {
  for (int blocks : {1, 2, 3, 7, 132}) {
    for (int tiles : {0, 1, 2, 6, 131, 132, 133, 1000, 4097}) {
      const int equal = tiles / blocks;
      for (int per_block : {0, equal + 1, 2 * equal + 3}) {
        const DecodeSplit split = DecodeSplit::of(1, blocks);
        const auto shares = DecodeShares<true>::of(tiles, split, per_block);
        const auto divided = DecodeShares<false>::of(tiles, split, per_block);
        EXPECT_EQ(shares.first_of(0), 0);
        EXPECT_EQ(shares.first_of(blocks), tiles);
        for (int block = 0; block < blocks; ++block) {
          const int first = shares.first_of(block), end = shares.first_of(block + 1);
          EXPECT_LE(end - first, per_block > 0 ? per_block : (tiles + blocks - 1) / blocks);
          EXPECT_GE(end - first, per_block > 0 ? 0 : equal);
          for (int tile = first; tile < end; ++tile) {
            ASSERT_EQ(shares.block_of(tile), block) << tile << " of " << tiles << ", " << blocks;
            ASSERT_EQ(divided.block_of(tile), block) << tile << " of " << tiles << ", " << blocks;
          }
        }
      }
    }
  }
}

TEST(DecodeKeys, SharesThatEndWithSequencesAreOfNoManyMoreTiles) {
  for (int blocks : {1, 2, 3, 7, 84, 114, 132}) {
    for (int sequences = 1; sequences < 700; ++sequences) {
      for (int tiles : {1, 2, 3, 7, 8, 31, 32, 33, 64, 1000}) {
        const DecodeCut cut = DecodeCut::of(tiles, DecodeSplit::of(sequences, blocks));
        SCOPED_TRACE(::testing::Message() << tiles << " tiles of each of " << sequences << ", "
                                          << blocks << " blocks: " << cut.per_block);
        const int equal = (sequences * tiles + blocks - 1) / blocks;
        if (cut.per_block == 0) {
          ASSERT_EQ(cut.tiles, tiles);
          continue;
        }
        ASSERT_LE(cut.per_block, equal + 8);
        ASSERT_LE((sequences * cut.tiles + cut.per_block - 1) / cut.per_block, blocks);
        if (cut.per_block < tiles) {
          ASSERT_EQ(cut.tiles % cut.per_block, 0);
          ASSERT_GE(cut.tiles, tiles);
          ASSERT_LT(cut.tiles - tiles, cut.per_block);
        } else {
          ASSERT_EQ(cut.tiles, tiles);
          ASSERT_EQ(cut.per_block % tiles, 0);
        }
      }
    }
  }
}

TEST(DecodeKeys, SequencesAreCutWhereThatIsFaster) {
  const auto cut = [](int tiles, int sequences) {
    const DecodeCut cut = DecodeCut::of(tiles, DecodeSplit::of(sequences, 132));
    return std::pair(cut.tiles, cut.per_block);
  };
  EXPECT_EQ(cut(256, 8), std::pair(256, 16));  // 16 parts of each of 8 heads of keys
  EXPECT_EQ(cut(250, 8), std::pair(256, 16));  // the last of them shorter
  EXPECT_EQ(cut(241, 8), std::pair(256, 16));
  EXPECT_EQ(cut(240, 8), std::pair(240, 15));
  EXPECT_EQ(cut(32, 256), std::pair(32, 64));  // two whole ones
  EXPECT_EQ(cut(4, 64), std::pair(4, 4));      // one: joining two parts takes longer
  EXPECT_EQ(cut(32, 136), std::pair(32, 0));  // two of each for half of the blocks, none for others
}

// Beside every row's keys, one by one.
TEST(DecodeKeys, MeetWhatRowsSee) {
  Random random(2);
  for (int count = 0; count < 3000; ++count) {
    const int q_length = static_cast<int>(random.integer(1, 20)),
              kv_length = static_cast<int>(random.integer(0, 300)),
              tile_keys = 16 << random.integer(0, 3);
    attention::Bound bounds[3];
    const int bound_count = static_cast<int>(random.integer(0, 3));
    for (int n = 0; n < bound_count; ++n)
      bounds[n] = {
          random.one_of({Anchor::start, Anchor::kv_end, Anchor::top_left, Anchor::bottom_right}),
          random.chance(0.5),
          random.integer(-350, 350) * (random.chance(0.1) ? int64_t{1} << 40 : 1)};
    const DecodeKeys keys = DecodeKeys::of(bounds, bound_count, q_length, kv_length, tile_keys);
    int first = kv_length, end = 0;
    for (int row = 0; row < q_length; ++row) {
      int64_t lo = 0, hi = kv_length;
      for (int n = 0; n < bound_count; ++n) {
        const Anchor anchor = bounds[n].anchor;
        const bool from_row = anchor == Anchor::top_left || anchor == Anchor::bottom_right;
        const int64_t at = bounds[n].constant + (from_row ? row : 0) +
                           (anchor == Anchor::kv_end         ? kv_length
                            : anchor == Anchor::bottom_right ? kv_length - q_length
                                                             : 0);
        if (bounds[n].upper)
          hi = std::min(hi, at);
        else
          lo = std::max(lo, at);
      }
      if (lo >= hi) continue;
      EXPECT_EQ(keys.visible(row).lo, lo);
      EXPECT_EQ(keys.visible(row).hi, hi);
      first = std::min(first, static_cast<int>(lo));
      end = std::max(end, static_cast<int>(hi));
    }
    EXPECT_GE(keys.tiles, 1);
    if (first >= end) continue;
    EXPECT_LE(keys.first_tile * tile_keys, first);
    EXPECT_GE((keys.first_tile + keys.tiles) * tile_keys, end);
    EXPECT_EQ(keys.first_tile, first / tile_keys);
    EXPECT_EQ(keys.end, end);
  }
}

}  // namespace
}  // namespace heddle::sm80
