#include "core/overlap.h"

#include <gtest/gtest.h>

#include <random>
#include <set>

namespace heddle {
namespace {

std::set<uintptr_t> bytes_of(const MemoryView& view) {
  std::set<uintptr_t> bytes;
  for (int64_t i = 0; i < view.dims[0]; ++i) {
    for (int64_t j = 0; j < view.dims[1]; ++j) {
      for (int64_t k = 0; k < view.dims[2]; ++k) {
        const int64_t element = i * view.strides[0] + j * view.strides[1] + k * view.strides[2];
        for (int64_t b = 0; b < view.element_bytes; ++b) {
          bytes.insert(view.address + static_cast<uintptr_t>(element * view.element_bytes + b));
        }
      }
    }
  }
  return bytes;
}

bool truly_overlap(const MemoryView& a, const MemoryView& b) {
  const std::set<uintptr_t> of_b = bytes_of(b);
  for (uintptr_t byte : bytes_of(a)) {
    if (of_b.contains(byte)) return true;
  }
  return false;
}

TEST(Overlap, NeverMissesOne) {
  std::mt19937 random(1);
  const auto upto = [&](int n) {
    return static_cast<int64_t>(random() % static_cast<unsigned>(n));
  };
  int apart = 0;
  for (int trial = 0; trial < 30000; ++trial) {
    MemoryView views[2];
    for (MemoryView& view : views) {
      view.address = 1000 + static_cast<uintptr_t>(upto(60));
      view.element_bytes = int64_t{1} << upto(3);
      view.dims = {1 + upto(3), 1 + upto(3), 1 + upto(3)};
      view.strides = {upto(3) * 12, upto(3) * 4, 1 + upto(2)};
    }
    const bool overlaps = truly_overlap(views[0], views[1]);
    if (overlaps) {
      ASSERT_TRUE(overlap(views[0], views[1])) << trial;
      ASSERT_TRUE(overlap(views[1], views[0])) << trial;
    }
    apart += !overlap(views[0], views[1]);
  }
  EXPECT_GT(apart, 1000);
}

TEST(Overlap, InterleavedTensorsAreApart) {
  // Q (8 heads), K and V (2 heads each) of one projection: [B, S, 12 heads, D], as [B, H, S, D]
  // views.
  const int64_t d = 32, s = 64, width = 12 * d;
  const auto view = [&](int64_t heads, int64_t first_head) {
    return MemoryView{static_cast<uintptr_t>(4096 + first_head * d * 2),
                      2,
                      {3, heads, s, d},
                      {s * width, d, width, 1}};
  };
  EXPECT_FALSE(overlap(view(8, 0), view(2, 8)));
  EXPECT_FALSE(overlap(view(2, 10), view(2, 8)));
  EXPECT_FALSE(overlap(view(2, 10), view(8, 0)));
  EXPECT_TRUE(overlap(view(8, 0), view(2, 7)));
  EXPECT_TRUE(overlap(view(8, 0), view(8, 0)));
}

TEST(Overlap, NeighboursAreApart) {
  const MemoryView a{0, 4, {2, 3}, {3, 1}};
  EXPECT_FALSE(overlap(a, {24, 4, {2, 3}, {3, 1}}));
  EXPECT_TRUE(overlap(a, {23, 4, {2, 3}, {3, 1}}));
  EXPECT_FALSE(overlap(a, {0, 4, {0, 3}, {3, 1}}));
}

}  // namespace
}  // namespace heddle
