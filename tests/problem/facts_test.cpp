// What kernels may be specialised on, and how coarse it is.
#include "problem/facts.h"

#include <gtest/gtest.h>

#include "engine_cpu/problems.h"

namespace heddle::problem {
namespace {

using testing::causal_attention;

TEST(Facts, OfLengthsAreClasses) {
  using Keys = AttentionFacts::Keys;
  for (const auto& [length, few, keys] : {std::tuple{int64_t{1}, true, Keys::to_255},
                                          {64, true, Keys::to_255},
                                          {65, false, Keys::to_255},
                                          {255, false, Keys::to_255},
                                          {256, false, Keys::to_512},
                                          {512, false, Keys::to_512},
                                          {513, false, Keys::to_2047},
                                          {2047, false, Keys::to_2047},
                                          {2048, false, Keys::to_8191},
                                          {8191, false, Keys::to_8191},
                                          {8192, false, Keys::more}}) {
    AttentionProblem p = causal_attention(DataType::bf16, 1, 2, 2, length, 8);
    EXPECT_EQ(facts_of(p).has_few_rows, few) << length;
    EXPECT_EQ(facts_of(p).keys, keys) << length;
  }
  AttentionProblem late = causal_attention(DataType::bf16, 1, 2, 2, 1, 8);
  late.sizes.planned_q_length = late.sizes.planned_kv_length = 9000;
  EXPECT_FALSE(facts_of(late).has_few_rows);
  EXPECT_EQ(facts_of(late).keys, Keys::more);
}

TEST(Facts, FewKeysAreCountedBySixteen) {
  for (const auto& [rows, keys, few, is_short] : {std::tuple{int64_t{7}, int64_t{0}, 0, true},
                                                  {7, 1, 16, true},
                                                  {7, 16, 16, true},
                                                  {7, 77, 80, true},
                                                  {320, 320, 320, true},
                                                  {321, 320, 320, false},
                                                  {1, 321, 0, false}}) {
    AttentionProblem p = causal_attention(DataType::bf16, 1, 2, 2, rows, 8);
    p.sizes.kv_length = keys;
    EXPECT_EQ(facts_of(p).few_keys, few) << keys;
    EXPECT_EQ(facts_of(p).is_short, is_short) << rows << " x " << keys;
    p.sizes.planned_kv_length = 1000;
    EXPECT_EQ(facts_of(p).few_keys, 0) << keys;
    EXPECT_FALSE(facts_of(p).is_short);
  }
}

TEST(Facts, OfRowsOfAGroupAreClasses) {
  using GroupRows = AttentionFacts::GroupRows;
  for (const auto& [length, rows] : {std::pair{int64_t{1}, GroupRows::to_8},
                                     {2, GroupRows::to_8},
                                     {3, GroupRows::to_16},
                                     {4, GroupRows::to_16},
                                     {5, GroupRows::to_32},
                                     {8, GroupRows::to_32},
                                     {9, GroupRows::to_64},
                                     {16, GroupRows::to_64},
                                     {17, GroupRows::more}}) {
    EXPECT_EQ(facts_of(causal_attention(DataType::bf16, 1, 8, 2, length, 8)).group_rows, rows)
        << length;
  }
}

TEST(Facts, OfHeadsAndScale) {
  AttentionProblem p = causal_attention(DataType::bf16, 1, 4, 2, 8, 8);
  EXPECT_TRUE(facts_of(p).groups_queries);
  EXPECT_TRUE(facts_of(p).as_many_value_heads);
  EXPECT_TRUE(facts_of(p).positive_scale);
  p.sizes.v_heads = 1;
  p.sizes.scale = -1;
  EXPECT_FALSE(facts_of(p).as_many_value_heads);
  EXPECT_FALSE(facts_of(p).positive_scale);
  p.sizes.scale = 1e-12;
  EXPECT_FALSE(facts_of(p).positive_scale) << "beside other factors it may be 0";
  p.sizes.scale = 1;
  p.structure.scale = p.structure.stats;
  EXPECT_FALSE(facts_of(p).positive_scale) << "a number that comes at an execution";
  EXPECT_FALSE(facts_of(causal_attention(DataType::bf16, 1, 2, 2, 8, 8)).groups_queries);
}

TEST(Facts, OfLayoutsAreTheLeastThatAllRowsHave) {
  const auto q = [](Dims dims, Dims strides) {
    AttentionProblem p = causal_attention(DataType::bf16, 2, 4, 2, 8, 8);
    p.sizes.layouts[0] = {.dims = dims, .strides = strides};
    return facts_of(p).operand(0);
  };
  const Dims dims{2, 4, 8, 8};
  EXPECT_EQ(q(dims, {256, 64, 8, 1}).alignment, 8);
  EXPECT_TRUE(q(dims, {256, 64, 8, 1}).has_aligned_rows(DataType::bf16));
  EXPECT_EQ(q(dims, {288, 72, 12, 1}).alignment, 4);
  EXPECT_FALSE(q(dims, {288, 72, 12, 1}).has_aligned_rows(DataType::bf16));
  EXPECT_TRUE(q(dims, {288, 72, 12, 1}).has_aligned_rows(DataType::f32));
  EXPECT_EQ(q({2, 4, 1, 32}, {1024, 512, 7, 1}).alignment, 16) << "one row has no stride";
  EXPECT_TRUE(q(dims, {256, 64, 8, 1}).steps_forward);
  EXPECT_FALSE(q(dims, {256, 0, 8, 1}).steps_forward);
  EXPECT_FALSE(q(dims, {256, 64, 16, 2}).steps_forward);
  EXPECT_FALSE(q(dims, {int64_t{1} << 40, 64, 8, 1}).steps_forward);
  EXPECT_TRUE(q({2, 4, 8, 1}, {256, 64, 8, 0}).per_row);
  EXPECT_FALSE(q({2, 4, 8, 1}, {256, 64, 8, 0}).per_column);
  EXPECT_FALSE(q({2, 4, 8, 1}, {256, 64, 8, 0}).has_cells);
  EXPECT_TRUE(q({2, 0, 8, 8}, {256, 64, 8, 1}).is_empty);
}

NormProblem norm(int64_t columns, int64_t row_stride) {
  NormProblem p;
  p.structure.operands = {{DataType::bf16}, {DataType::bf16}, {DataType::bf16}};
  p.sizes.layouts = {
      {{6, columns}, {row_stride, 1}}, {{1, columns}, {0, 1}}, {{6, columns}, {columns, 1}}};
  p.structure.x = 0, p.structure.weight = 1, p.structure.y = 2;
  return p;
}

TEST(Facts, OfANormCountVectorsByPowersOfTwo) {
  EXPECT_EQ(facts_of(norm(4096, 4096)), (NormFacts{1, 1, 8, 512}));
  EXPECT_EQ(facts_of(norm(4088, 4096)), (NormFacts{1, 1, 8, 512}));
  EXPECT_EQ(facts_of(norm(4104, 4104)), (NormFacts{1, 1, 8, 1024}));
  EXPECT_EQ(facts_of(norm(4096, 4100)), (NormFacts{1, 1, 4, 1024}));
}

TEST(Facts, OfAnAppendAreTheLeastAlignment) {
  CacheAppendProblem p;
  p.structure.operands = {{DataType::bf16}, {DataType::bf16}};
  p.sizes.layouts = {{{1, 2, 3, 64}, {0, 192, 64, 1}}, {{1, 2, 3, 64}, {0, 192, 64, 1}}};
  p.structure.q = 0, p.structure.q_out = 1;
  EXPECT_EQ(facts_of(p),
            (CacheAppendFacts{.is_empty = false, .alignment = 16, .table_alignment = 16}));
  p.sizes.layouts[1].strides[2] = 68;
  EXPECT_EQ(facts_of(p).alignment, 4);
  p.sizes.layouts[0].dims[2] = 0;
  EXPECT_TRUE(facts_of(p).is_empty);
}

TEST(Facts, OfAnAppendTellTablesAndStridesApart) {
  CacheAppendProblem p;
  p.structure.operands = {{DataType::bf16}, {DataType::f32}, {DataType::f32}};
  p.sizes.layouts = {{{2, 2, 3, 64}, {384, 192, 64, 1}},
                     {{9, 1, 1, 32}, {32, 0, 0, 1}},
                     {{9, 1, 1, 32}, {40, 0, 0, 1}}};
  p.structure.q = 0, p.structure.cosines = 1, p.structure.sines = 2;
  EXPECT_EQ(facts_of(p), (CacheAppendFacts{.alignment = 16, .table_alignment = 8}));
  p.sizes.layouts[1].strides = {1024, 0, 0, 16};
  EXPECT_EQ(facts_of(p).table_alignment, 1);
  p.sizes.layouts[0].strides[0] = UINT32_MAX;
  EXPECT_FALSE(facts_of(p).has_wide_strides);
  p.sizes.layouts[0].strides[0] = int64_t{1} << 32;
  EXPECT_TRUE(facts_of(p).has_wide_strides);
  p.sizes.layouts[0].dims[0] = 1;
  EXPECT_FALSE(facts_of(p).has_wide_strides);
}

}  // namespace
}  // namespace heddle::problem
