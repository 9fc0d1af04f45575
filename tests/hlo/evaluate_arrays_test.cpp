// Operations that move, contract and index arrays.
#include <gtest/gtest.h>

#include "evaluated.h"

namespace heddle::hlo {
namespace {

const std::string kMatrix = "x = f32[2,3] constant({{1, 2, 3}, {4, 5, 6}}) ";
const std::string kMaximum =
    "larger { a = s32[] parameter(0) b = s32[] parameter(1) ROOT c = s32[] maximum(a, b) }\n";

TEST(Movement, ViewsOfAMatrix) {
  EXPECT_EQ(value(kMatrix + "ROOT r = f32[3,2] transpose(x), dimensions={1,0}"),
            "{ { 1, 4 }, { 2, 5 }, { 3, 6 } }");
  EXPECT_EQ(value(kMatrix + "ROOT r = f32[3,2] reshape(x)"), "{ { 1, 2 }, { 3, 4 }, { 5, 6 } }");
  EXPECT_EQ(value(kMatrix + "ROOT r = f32[2,3] reverse(x), dimensions={0,1}"),
            "{ { 6, 5, 4 }, { 3, 2, 1 } }");
  EXPECT_EQ(value(kMatrix + "ROOT r = f32[1,2] slice(x), slice={[1:2], [0:3:2]}"), "{ { 4, 6 } }");
  EXPECT_EQ(value("x = s32[2] constant({1, 2}) ROOT r = s32[2,2] broadcast(x), dimensions={0}"),
            "{ { 1, 1 }, { 2, 2 } }");
  EXPECT_EQ(value("ROOT r = s32[2,3] iota(), iota_dimension=1"), "{ { 0, 1, 2 }, { 0, 1, 2 } }");
  EXPECT_EQ(value("x = s32[2] constant({1, 2}) y = s32[1] constant({3}) "
                  "ROOT r = s32[3] concatenate(x, y), dimensions={0}"),
            "{1, 2, 3}");
}

TEST(Movement, BitcastsReadMemoryInAnotherOrder) {
  const std::string x = "x = f32[2,3]{1,0} constant({{1, 2, 3}, {4, 5, 6}}) ";
  EXPECT_EQ(value(x + "ROOT r = f32[3,2]{1,0} bitcast(x)"), "{ { 1, 2 }, { 3, 4 }, { 5, 6 } }");
  EXPECT_EQ(value(x + "ROOT r = f32[3,2]{0,1} bitcast(x)"), "{ { 1, 4 }, { 2, 5 }, { 3, 6 } }");
  EXPECT_EQ(value(x + "y = f32[2,3]{0,1} copy(x) ROOT r = f32[6] bitcast(y)"),
            "{1, 4, 2, 5, 3, 6}");
  EXPECT_EQ(value(x + "ROOT r = f32[3,1,2]{0,2,1} bitcast(x)"),
            "{ { { 1, 4 } }, { { 2, 5 } }, { { 3, 6 } } }");
  EXPECT_EQ(value(x + "ROOT r = s32[2,3]{1,0} bitcast(x)"),
            "cannot evaluate r: bitcast is only known between arrays of one type and size");
}

TEST(Pad, LowHighInteriorAndNegative) {
  const std::string operands = "x = s32[3] constant({1, 2, 3}) v = s32[] constant(9) ";
  EXPECT_EQ(value(operands + "ROOT r = s32[8] pad(x, v), padding=1_2_1"),
            "{9, 1, 9, 2, 9, 3, 9, 9}");
  EXPECT_EQ(value(operands + "ROOT r = s32[2] pad(x, v), padding=-1_0"), "{2, 3}");
  EXPECT_EQ(value(operands + "ROOT r = s32[3] pad(x, v), padding=-3_3"), "{9, 9, 9}");
  EXPECT_EQ(value(operands + "ROOT r = s32[2] pad(x, v), padding=-1_-2_1"), "{9, 2}");
}

TEST(DynamicSlice, ClampsItsStart) {
  const std::string x = "x = s32[4] constant({1, 2, 3, 4}) ";
  EXPECT_EQ(value(x + "i = s32[] constant(9) ROOT r = s32[2] dynamic-slice(x, i), "
                      "dynamic_slice_sizes={2}"),
            "{3, 4}");
  EXPECT_EQ(value(x + "i = s32[] constant(-9) ROOT r = s32[2] dynamic-slice(x, i), "
                      "dynamic_slice_sizes={2}"),
            "{1, 2}");
  EXPECT_EQ(value(x + "i = u64[] constant(18446744073709551615) u = s32[1] constant({7}) "
                      "ROOT r = s32[4] dynamic-update-slice(x, u, i)"),
            "{1, 2, 3, 7}");
}

TEST(Dot, BatchesAndRounding) {
  EXPECT_EQ(value(kMatrix + "ROOT r = f32[2,2] dot(x, x), lhs_contracting_dims={1}, "
                            "rhs_contracting_dims={1}"),
            "{ { 14, 32 }, { 32, 77 } }");
  EXPECT_EQ(
      value(kMatrix + "ROOT r = f32[3] dot(x, x), lhs_batch_dims={1}, "
                      "lhs_contracting_dims={0}, rhs_batch_dims={1}, rhs_contracting_dims={0}"),
      "{17, 29, 45}");
  EXPECT_EQ(value("x = s8[2] constant({100, 100}) ROOT r = s32[] dot(x, x), "
                  "lhs_contracting_dims={0}, rhs_contracting_dims={0}"),
            "20000");
  // 256 + 1 is summed in f32 and rounded once.
  EXPECT_EQ(value("x = bf16[3] constant({16, 1, 1}) ROOT r = bf16[] dot(x, x), "
                  "lhs_contracting_dims={0}, rhs_contracting_dims={0}"),
            "258");
  // Longer than one block of the contraction; every sum is exact.
  EXPECT_EQ(value("x = f32[2500] iota(), iota_dimension=0 o = f32[] constant(1) "
                  "y = f32[2500] broadcast(o), dimensions={} ROOT r = f32[] dot(x, y), "
                  "lhs_contracting_dims={0}, rhs_contracting_dims={0}"),
            "3.12375e+06");
  EXPECT_EQ(value("x = f32[0] constant({}) ROOT r = f32[] dot(x, x), lhs_contracting_dims={0}, "
                  "rhs_contracting_dims={0}"),
            "0");
}

TEST(Reduce, RowsColumnsAndAll) {
  const std::string zero = "z = f32[] constant(0) ";
  EXPECT_EQ(
      value(kMatrix + zero + "ROOT r = f32[2] reduce(x, z), dimensions={1}, to_apply=sum", kAdd),
      "{6, 15}");
  EXPECT_EQ(
      value(kMatrix + zero + "ROOT r = f32[3] reduce(x, z), dimensions={0}, to_apply=sum", kAdd),
      "{5, 7, 9}");
  EXPECT_EQ(
      value(kMatrix + zero + "ROOT r = f32[] reduce(x, z), dimensions={0,1}, to_apply=sum", kAdd),
      "21");
  EXPECT_EQ(value("x = f32[2,0] constant({{}, {}}) z = f32[] constant(5) "
                  "ROOT r = f32[2] reduce(x, z), dimensions={1}, to_apply=sum",
                  kAdd),
            "{5, 5}");
}

// Not one operation but a computation, over two arrays at once: the index of the largest element.
TEST(Reduce, ArgmaxByAnyComputation) {
  const std::string argmax =
      "best { v = f32[] parameter(0) i = s32[] parameter(1) w = f32[] parameter(2) "
      "j = s32[] parameter(3) ge = pred[] compare(v, w), direction=GE "
      "a = f32[] select(ge, v, w) b = s32[] select(ge, i, j) ROOT t = (f32[], s32[]) tuple(a, b) "
      "}\n";
  EXPECT_EQ(value("x = f32[5] constant({3, 1, 4, 1, 5}) i = s32[5] iota(), iota_dimension=0 "
                  "low = f32[] constant(-inf) zero = s32[] constant(0) "
                  "ROOT r = (f32[], s32[]) reduce(x, i, low, zero), dimensions={0}, to_apply=best",
                  argmax),
            "( 5, 4 )");
}

TEST(ReduceWindow, CumulativeSumAndMaximum) {
  EXPECT_EQ(value("x = f32[4] constant({1, 2, 3, 4}) z = f32[] constant(0) "
                  "ROOT r = f32[4] reduce-window(x, z), window={size=4 pad=3_0}, to_apply=sum",
                  kAdd),
            "{1, 3, 6, 10}");
  EXPECT_EQ(value("x = s32[5] constant({1, 5, 2, 4, 3}) z = s32[] constant(-9) "
                  "ROOT r = s32[2] reduce-window(x, z), window={size=2 stride=2 rhs_dilate=2}, "
                  "to_apply=larger",
                  kMaximum),
            "{2, 3}");
}

TEST(Gather, RowsWithClampedIndices) {
  EXPECT_EQ(
      value(
          "t = s32[3,2] constant({{1, 2}, {3, 4}, {5, 6}}) i = s32[3,1] constant({{2}, {0}, {9}}) "
          "ROOT r = s32[3,2] gather(t, i), offset_dims={1}, collapsed_slice_dims={0}, "
          "start_index_map={0}, index_vector_dim=1, slice_sizes={1,2}"),
      "{ { 5, 6 }, { 1, 2 }, { 5, 6 } }");
}

TEST(Gather, BatchingDimensionsRunTogether) {
  EXPECT_EQ(
      value("t = s32[2,3] constant({{1, 2, 3}, {4, 5, 6}}) i = s32[2,1] constant({{2}, {0}}) "
            "ROOT r = s32[2] gather(t, i), offset_dims={}, collapsed_slice_dims={1}, "
            "start_index_map={1}, operand_batching_dims={0}, start_indices_batching_dims={0}, "
            "index_vector_dim=1, slice_sizes={1,1}"),
      "{3, 4}");
}

TEST(Scatter, AddsAndDropsWhatLiesOutside) {
  EXPECT_EQ(value("t = f32[3,2] constant({{0, 0}, {0, 0}, {0, 0}}) "
                  "i = s32[4,1] constant({{2}, {0}, {2}, {7}}) "
                  "u = f32[4,2] constant({{1, 2}, {3, 4}, {5, 6}, {7, 8}}) "
                  "ROOT r = f32[3,2] scatter(t, i, u), update_window_dims={1}, "
                  "inserted_window_dims={0}, scatter_dims_to_operand_dims={0}, index_vector_dim=1, "
                  "to_apply=sum",
                  kAdd),
            "{ { 3, 4 }, { 0, 0 }, { 6, 8 } }");
}

TEST(Sort, ByTheProgramsComparator) {
  const std::string descending =
      "gt { a = s32[] parameter(0) b = s32[] parameter(1) c = s32[] parameter(2) "
      "d = s32[] parameter(3) ROOT r = pred[] compare(a, b), direction=GT }\n";
  EXPECT_EQ(
      value("x = s32[4] constant({2, 4, 1, 4}) i = s32[4] iota(), iota_dimension=0 "
            "ROOT r = (s32[4], s32[4]) sort(x, i), dimensions={0}, is_stable=true, to_apply=gt",
            descending),
      "( {4, 4, 2, 1}, {1, 3, 0, 2} )");
}

TEST(TopK, LargestFirst) {
  EXPECT_EQ(value("x = f32[4] constant({2, 4, 1, 3}) "
                  "ROOT r = (f32[2], s32[2]) topk(x), k=2, largest=true"),
            "( {4, 3}, {1, 3} )");
}

// The values XLA's CPU backend gives for the same states.
TEST(RngBitGenerator, DrawsXlasBits) {
  EXPECT_EQ(value("s = u64[2] constant({1, 2}) "
                  "ROOT r = (u64[2], u32[4]) rng-bit-generator(s), algorithm=rng_mt"),
            "cannot evaluate r: rng-bit-generator with algorithm 'rng_mt' and a state of u64[2] is "
            "not known");
  const std::string drawn = value(
      "s = u64[2] constant({1311768467463790320, 1229782938533634594}) "
      "ROOT r = (u64[2], u32[5]) rng-bit-generator(s), algorithm=rng_three_fry");
  EXPECT_EQ(drawn.substr(0, drawn.find(", {")), "( {1311768467463790320, 1229782938533634597}");
}

TEST(Reduce, ASumOfManyPredsIsTrue) {
  EXPECT_EQ(
      value("x = pred[] constant(true) y = pred[512] broadcast(x), dimensions={} "
            "z = pred[] constant(false) "
            "ROOT r = pred[] reduce(y, z), dimensions={0}, to_apply=c",
            "c { a = pred[] parameter(0) b = pred[] parameter(1) ROOT s = pred[] add(a, b) }\n"),
      "true");
}

// Steps of one element, and padding between none, may be of any length.
TEST(Movement, StepsOfAnyLength) {
  EXPECT_EQ(value("x = s32[2,2] constant({{1, 2}, {3, 4}}) "
                  "ROOT r = s32[1,2] slice(x), slice={[1:2:9223372036854775807], [0:2:1]}"),
            "{ { 3, 4 } }");
  EXPECT_EQ(value("i = u8[1,65536] iota(), iota_dimension=1 z = u8[] constant(9) "
                  "p = u8[1,65536] pad(i, z), padding=0_0_281474976710656x0_0_0 "
                  "ROOT r = u8[1,2] slice(p), slice={[0:1], [5:7]}"),
            "{ { 5, 6 } }");
  EXPECT_EQ(value("z = f32[] constant(0) "
                  "x = f32[0,16777216,16777216] broadcast(z), dimensions={} "
                  "q = f32[0,16777216,16777216] reduce-window(x, z), to_apply=sum, "
                  "window={size=1x1x1 lhs_dilate=16777216x1x1} "
                  "ROOT r = f32[0] reshape(q)",
                  kAdd),
            "{}");
}

// XLA lets any type be preferred for a product's numbers, and mixes floating types.
TEST(MixedTypes, WhatXlaAllowsIsRead) {
  const std::string contracted = "lhs_contracting_dims={0}, rhs_contracting_dims={0}";
  EXPECT_EQ(value("x = s8[2] constant({3, -4}) y = s8[2] constant({5, 6}) "
                  "ROOT d = f32[] dot(x, y), " +
                  contracted),
            "-9");
  EXPECT_EQ(value("x = c64[1] constant({(1, 2)}) y = f32[1] constant({5}) "
                  "ROOT d = f32[] dot(x, y), " +
                  contracted),
            "cannot evaluate d: dot of c64 that gives f32 is not known");
  EXPECT_EQ(value("x = f32[1] constant({2}) ROOT d = s32[] dot(x, x), " + contracted),
            "cannot evaluate d: dot of f32 that gives s32 is not known");
  EXPECT_EQ(value("o = f32[2] constant({1, 2}) i = s32[1] constant({1}) "
                  "u = bf16[1] constant({3}) ROOT s = f32[2] scatter(o, i, u), "
                  "update_window_dims={}, inserted_window_dims={0}, "
                  "scatter_dims_to_operand_dims={0}, index_vector_dim=1, to_apply=last",
                  "last { a = f32[] parameter(0) ROOT b = f32[] parameter(1) }\n"),
            "{1, 3}");
  EXPECT_EQ(value("x = u8[2] constant({18, 52}) ROOT b = u4[2,2] bitcast-convert(x)"),
            "cannot evaluate b: bitcast-convert of types narrower than a byte is not known");
}

TEST(Indexing, ScatterIntoNothing) {
  for (const std::string combine : {"add", "subtract"}) {
    EXPECT_EQ(value("o = f32[0] constant({}) i = s32[4,0] constant({ {}, {}, {}, {} }) "
                    "u = f32[4] constant({1, 2, 3, 4}) "
                    "ROOT s = f32[0] scatter(o, i, u), update_window_dims={}, "
                    "inserted_window_dims={0}, scatter_dims_to_operand_dims={}, "
                    "index_vector_dim=1, to_apply=c",
                    "c { a = f32[] parameter(0) b = f32[] parameter(1) ROOT c = f32[] " + combine +
                        "(a, b) }\n"),
              "{}");
  }
}

TEST(Sorting, OfEmptyArraysOfLongLines) {
  EXPECT_EQ(value("z = f32[] constant(0) x = f32[0,140737488355328] broadcast(z), dimensions={} "
                  "t = (f32[0,1], s32[0,1]) topk(x), k=1 "
                  "g = f32[0,1] get-tuple-element(t), index=0 ROOT r = f32[0] reshape(g)"),
            "{}");
}

TEST(RandomBits, OfEmptyArraysOfManyLines) {
  EXPECT_EQ(value("s = u64[2] constant({1, 2}) t = (u64[2], u32[281474976710655,0]) "
                  "rng-bit-generator(s), algorithm=rng_three_fry "
                  "ROOT r = u64[2] get-tuple-element(t), index=0"),
            "{1, 2}");
}

}  // namespace
}  // namespace heddle::hlo
