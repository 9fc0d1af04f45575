#include "core/dims.h"

#include <gtest/gtest.h>

#include <random>
#include <set>

namespace heddle {
namespace {

TEST(Dims, HoldsUpToItsRank) {
  Dims dims{1, 2, 3};
  dims.push_back(4);
  EXPECT_EQ(dims.rank(), 4);
  EXPECT_EQ(to_string(dims), "[1, 2, 3, 4]");
  EXPECT_EQ(to_string(Dims{}), "[]");
  for (int i = 0; i < 10; ++i) dims.push_back(i);
  EXPECT_EQ(dims.rank(), kMaxRank);
  EXPECT_NE(dims, (Dims{1, 2, 3, 4}));
}

TEST(Dims, CountsElements) {
  EXPECT_EQ(element_count({}), 1);
  EXPECT_EQ(element_count({2, 3, 4}), 24);
  EXPECT_EQ(element_count({5, 0, INT64_MAX}), 0);
  EXPECT_EQ(element_count({2, -1}), std::nullopt);
  EXPECT_EQ(element_count({INT64_MAX}), INT64_MAX);
  EXPECT_EQ(element_count({INT64_MAX, 2}), std::nullopt);
  EXPECT_EQ(element_count({int64_t{1} << 32, int64_t{1} << 31}), std::nullopt);
}

TEST(Dims, DenseStrides) {
  EXPECT_EQ(dense_strides({2, 3, 4}), (Dims{12, 4, 1}));
  EXPECT_EQ(dense_strides({2, 0, 4}), (Dims{4, 4, 1}));
  EXPECT_EQ(dense_strides({2, INT64_MAX, 4}), std::nullopt);
  EXPECT_EQ(dense_strides({2, -3}), std::nullopt);
}

TEST(Dims, SpanIsOnePastTheLastElement) {
  EXPECT_EQ(span_of({2, 3}, {3, 1}), 6);
  EXPECT_EQ(span_of({2, 3}, {10, 2}), 15);
  EXPECT_EQ(span_of({2, 0}, {10, 1}), 0);
  EXPECT_EQ(span_of({1, 3}, {INT64_MIN, 1}), 3) << "strides of size-1 dims mean nothing";
  EXPECT_EQ(span_of({2, 3}, {-1, 1}), std::nullopt);
  EXPECT_EQ(span_of({3}, {INT64_MAX / 2}), INT64_MAX - 1 + 1);
  EXPECT_EQ(span_of({4}, {INT64_MAX / 2}), std::nullopt);
  EXPECT_EQ(span_of({2}, {INT64_MAX}), std::nullopt) << "one past the last element has no int64";
}

TEST(Dims, FindsOverlapsOfRandomNestedLayouts) {
  // Against a count of distinct places; a layout that is no nest may be called overlapping.
  std::mt19937 random(1);
  int free = 0;
  for (int trial = 0; trial < 20000; ++trial) {
    Dims dims, strides;
    for (int i = 0; i < 3; ++i) {
      dims.push_back(1 + static_cast<int64_t>(random() % 4));
      strides.push_back(static_cast<int64_t>(random() % 20));
    }
    std::set<int64_t> places;
    for (int64_t i = 0; i < dims[0]; ++i) {
      for (int64_t j = 0; j < dims[1]; ++j) {
        for (int64_t k = 0; k < dims[2]; ++k)
          places.insert(i * strides[0] + j * strides[1] + k * strides[2]);
      }
    }
    const bool overlaps = static_cast<int64_t>(places.size()) < *element_count(dims);
    if (overlaps) {
      EXPECT_TRUE(overlaps_itself(dims, strides)) << to_string(dims) << to_string(strides);
    }
    free += !overlaps_itself(dims, strides);
  }
  EXPECT_GT(free, 1000);
  EXPECT_FALSE(overlaps_itself({2, 8, 64, 32}, {8 * 64 * 32, 64 * 32, 32, 1}));
  EXPECT_FALSE(overlaps_itself({2, 8, 64, 32}, {64 * 3 * 8 * 32, 32, 3 * 8 * 32, 1}));
  EXPECT_FALSE(overlaps_itself({1, 3}, {0, 1}));
  EXPECT_TRUE(overlaps_itself({2, 3}, {0, 1}));
  EXPECT_TRUE(overlaps_itself({2, 2}, {INT64_MAX, INT64_MAX}));
}

}  // namespace
}  // namespace heddle
