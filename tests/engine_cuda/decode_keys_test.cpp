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
      const auto shares = DecodeShares<true>::of(tiles, blocks);
      const auto divided = DecodeShares<false>::of(tiles, blocks);
      EXPECT_EQ(shares.first_of(0), 0);
      EXPECT_EQ(shares.first_of(blocks), tiles);
      for (int block = 0; block < blocks; ++block) {
        const int first = shares.first_of(block), end = shares.first_of(block + 1);
        EXPECT_LE(end - first, (tiles + blocks - 1) / blocks);
        EXPECT_GE(end - first, tiles / blocks);
        for (int tile = first; tile < end; ++tile) {
          ASSERT_EQ(shares.block_of(tile), block) << tile << " of " << tiles << ", " << blocks;
          ASSERT_EQ(divided.block_of(tile), block) << tile << " of " << tiles << ", " << blocks;
        }
      }
    }
  }
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
