// What parameters are given is read off what the program does with them.
#include "hlo/interpreter/random_arguments.h"

#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "hlo/interpreter/parameter_roles.h"
#include "hlo/read.h"

namespace heddle::hlo {
namespace {

std::unique_ptr<Module> parsed(const std::string& text) {
  auto module = read_text(text);
  EXPECT_TRUE(module) << module.status().message();
  return module ? std::move(*module) : nullptr;
}

/// Of the first parameter of an entry with these instructions.
ParameterRole role(const std::string& instructions) {
  const auto module = parsed("HloModule m ENTRY e { " + instructions + " }");
  return parameter_roles(*module)[0];
}

Literal drawn(const Module& module, Draw draw, size_t parameter = 0, uint64_t seed = 1) {
  auto arguments = random_arguments(module, seed, draw);
  EXPECT_TRUE(arguments) << arguments.status().message();
  return (*arguments)[parameter];
}

const std::string kZeros = "z = s32[] constant(0) zs = s32[2,8] broadcast(z), dimensions={} ";

TEST(Roles, OfIntegers) {
  EXPECT_EQ(role("p = s32[2,8] parameter(0) " + kZeros +
                 "ROOT c = pred[2,8] compare(p, zs), direction=NE")
                .role,
            Role::mask);
  EXPECT_EQ(role("p = s32[2,8] parameter(0) o = s32[] constant(1) os = s32[2,8] broadcast(o), "
                 "dimensions={} s = s32[2,8] subtract(os, p) ROOT f = f32[2,8] convert(s)")
                .role,
            Role::mask);
  EXPECT_EQ(role("p = s32[2,8] parameter(0) w = f32[2,8] parameter(1) f = f32[2,8] convert(p) "
                 "a = f32[2,8] multiply(f, w) ROOT s = f32[2,8] sine(a)")
                .role,
            Role::position);
  EXPECT_EQ(role("p = s32[2,8] parameter(0) a = s32[2,8,8] broadcast(p), dimensions={0,1} "
                 "b = s32[2,8,8] broadcast(p), dimensions={0,2} "
                 "ROOT c = pred[2,8,8] compare(a, b), direction=EQ")
                .role,
            Role::segment);
  EXPECT_EQ(role("p = s32[2,8] parameter(0) a = s32[2,8,8] broadcast(p), dimensions={0,1} "
                 "b = s32[2,8,8] broadcast(p), dimensions={0,2} "
                 "ROOT c = pred[2,8,8] compare(a, b), direction=GE")
                .role,
            Role::position);
  const ParameterRole length = role(
      "p = s32[2] parameter(0) a = s32[2,8] broadcast(p), dimensions={0} "
      "i = s32[2,8] iota(), iota_dimension=1 ROOT c = pred[2,8] compare(i, a), direction=LT");
  EXPECT_EQ(length.role, Role::length);
  EXPECT_EQ(length.bound, 8);
  EXPECT_EQ(role("p = u32[2] parameter(0) q = u32[2] parameter(1) ROOT x = u32[2] xor(p, q)").role,
            Role::key);
  EXPECT_EQ(role("p = s32[2,8] parameter(0) ROOT n = s32[2,8] negate(p)").role, Role::value);
}

TEST(Roles, OfFloats) {
  EXPECT_EQ(role("p = f32[8] parameter(0) o = f32[] constant(1) os = f32[8] broadcast(o), "
                 "dimensions={} ROOT s = f32[8] subtract(os, p)")
                .role,
            Role::mask);
  EXPECT_EQ(role("p = f32[8] parameter(0) o = f32[] constant(1e-6) os = f32[8] broadcast(o), "
                 "dimensions={} s = f32[8] add(p, os) ROOT r = f32[8] rsqrt(s)")
                .role,
            Role::positive);
  EXPECT_EQ(role("p = f32[2,8,4] parameter(0) k = f32[2,8,4] parameter(1) ROOT d = f32[2,8,8] "
                 "dot(p, k), lhs_batch_dims={0}, lhs_contracting_dims={2}, rhs_batch_dims={0}, "
                 "rhs_contracting_dims={2}")
                .role,
            Role::projected);
  EXPECT_EQ(role("p = f32[2,8,8] parameter(0) q = f32[2,8,4] parameter(1) d = f32[2,8,8] "
                 "dot(q, q), lhs_batch_dims={0}, lhs_contracting_dims={2}, rhs_batch_dims={0}, "
                 "rhs_contracting_dims={2} s = f32[2,8,8] add(d, p) "
                 "ROOT e = f32[2,8,8] exponential(s)")
                .role,
            Role::bias);
  EXPECT_EQ(role("p = f32[8] parameter(0) ROOT n = f32[8] negate(p)").role, Role::value);
}

// A helper that several parameters pass through does not give one the bound of another.
TEST(Roles, OfOneCallAreNotThoseOfAnother) {
  const std::string take =
      "offset_dims={1}, collapsed_slice_dims={0}, start_index_map={0}, index_vector_dim=1";
  const auto module = parsed(
      "HloModule m\n"
      "column { i = s32[5] parameter(0) ROOT c = s32[5,1] reshape(i) }\n"
      "ENTRY e { a = s32[5] parameter(0) b = s32[5] parameter(1) s = f32[3,4] parameter(2) "
      "t = f32[30,4] parameter(3) ca = s32[5,1] call(a), to_apply=column "
      "cb = s32[5,1] call(b), to_apply=column "
      "ga = f32[5,4] gather(s, ca), slice_sizes={1,4}, " +
      take + " gb = f32[5,4] gather(t, cb), slice_sizes={1,4}, " + take +
      " ROOT r = (f32[5,4], f32[5,4]) tuple(ga, gb) }");
  EXPECT_EQ(parameter_roles(*module)[0].bound, 3);
  EXPECT_EQ(parameter_roles(*module)[1].bound, 30);
}

TEST(RandomArguments, OfMasksHideRowsAndEntriesWhole) {
  const auto module = parsed("HloModule m ENTRY e { ROOT p = pred[4,3,16,16] parameter(0) }");
  const Literal ordinary = drawn(*module, Draw::ordinary), hidden = drawn(*module, Draw::hidden);
  for (int64_t row = 0; row < 4 * 3 * 16; ++row) {
    EXPECT_EQ(ordinary.get_integer(row * 16 + row % 16), 1) << row;  // its own key
    EXPECT_EQ(ordinary.get_integer(row * 16), 1) << row;
  }
  const auto shown = [&](int64_t begin, int64_t count) {
    int64_t sum = 0;
    for (int64_t i = begin; i < begin + count; ++i) sum += hidden.get_integer(i);
    return sum;
  };
  int64_t entries = 0, heads = 0, rows = 0;
  for (int64_t b = 0; b < 4; ++b) entries += shown(b * 768, 768) == 0 ? 1 : 0;
  for (int64_t h = 0; h < 12; ++h) heads += shown(h * 256, 256) == 0 ? 1 : 0;
  for (int64_t r = 0; r < 192; ++r) rows += shown(r * 16, 16) == 0 ? 1 : 0;
  EXPECT_EQ(entries, 1);
  EXPECT_GE(heads, 6);  // three of the hidden entry, and one of each other
  EXPECT_GT(rows, heads * 16);
  EXPECT_GT(shown(0, 3072), 0);
}

TEST(RandomArguments, OfPositionsDifferBetweenEntries) {
  const auto module = parsed(
      "HloModule m ENTRY e { p = s32[4,16] parameter(0) f = f32[4,16] convert(p) "
      "ROOT s = f32[4,16] sine(f) }");
  for (const Draw draw : kDraws) {
    const Literal positions = drawn(*module, draw);
    std::set<std::vector<int64_t>> rows;
    for (int64_t b = 0; b < 4; ++b) {
      std::vector<int64_t> row;
      for (int64_t i = 0; i < 16; ++i) row.push_back(positions.get_integer(b * 16 + i));
      rows.insert(row);
    }
    EXPECT_EQ(rows.size(), 4U) << name(draw);
  }
}

TEST(RandomArguments, OfTokensAreAlsoPadding) {
  const auto rows = parsed(
      "HloModule m ENTRY e { p = s32[4,16] parameter(0) t = f32[50,8] parameter(1) "
      "r = s32[4,16,1] reshape(p) ROOT g = f32[4,16,8] gather(t, r), offset_dims={2}, "
      "collapsed_slice_dims={0}, start_index_map={0}, index_vector_dim=2, slice_sizes={1,8} }");
  int64_t padded = 0, known = 0;
  for (uint64_t seed = 0; seed < 8; ++seed) {
    const Literal tokens = drawn(*rows, Draw::ordinary, 0, seed);
    for (int64_t b = 0; b < 4; ++b) padded += tokens.get_integer(b * 16 + 15) == 0 ? 1 : 0;
    for (int64_t i = 0; i < 64; ++i) {
      EXPECT_GE(tokens.get_integer(i), 0);
      EXPECT_LT(tokens.get_integer(i), 50);
      known = std::max(known, tokens.get_integer(i));
    }
  }
  EXPECT_GT(padded, 8);
  EXPECT_GT(known, 40);
  const Literal hidden = drawn(*rows, Draw::hidden);
  for (int64_t i = 16; i < 32; ++i) EXPECT_EQ(hidden.get_integer(i), 0);  // an entry of padding
}

TEST(RandomArguments, OfLengthsAreNoneOneAndAll) {
  const auto module = parsed(
      "HloModule m ENTRY e { p = s32[3] parameter(0) a = s32[3,8] broadcast(p), dimensions={0} "
      "i = s32[3,8] iota(), iota_dimension=1 ROOT c = pred[3,8] compare(i, a), direction=LT }");
  const Literal lengths = drawn(*module, Draw::hidden);
  EXPECT_EQ(lengths.get_integer(0), 0);
  EXPECT_EQ(lengths.get_integer(1), 8);
  EXPECT_EQ(lengths.get_integer(2), 1);
}

TEST(RandomArguments, OfBiasesHoldEveryFill) {
  const auto module = parsed(
      "HloModule m ENTRY e { p = f32[4,16,16] parameter(0) q = f32[4,16,4] parameter(1) "
      "d = f32[4,16,16] dot(q, q), lhs_batch_dims={0}, lhs_contracting_dims={2}, "
      "rhs_batch_dims={0}, rhs_contracting_dims={2} s = f32[4,16,16] add(d, p) "
      "ROOT e = f32[4,16,16] exponential(s) }");
  const Literal bias = drawn(*module, Draw::hidden);
  std::set<double> fills;
  for (int64_t i = 0; i < bias.element_count(); ++i)
    if (bias.get(i) < -1e3) fills.insert(bias.get(i));
  EXPECT_EQ(fills, (std::set<double>{-INFINITY, -0x1.fffffep127, -1e9}));
  const Literal ordinary = drawn(*module, Draw::ordinary);
  for (int64_t i = 0; i < ordinary.element_count(); ++i) EXPECT_GT(ordinary.get(i), -10);
}

TEST(RandomArguments, NearbyAreOneRoundingAway) {
  const auto module = parsed(
      "HloModule m ENTRY e { p = bf16[64] parameter(0) q = pred[8] parameter(1) "
      "ROOT n = bf16[64] negate(p) }");
  const auto arguments = random_arguments(*module, 3);
  ASSERT_TRUE(arguments);
  const std::vector<Literal> nearby = nearby_arguments(*arguments, 0x1p-8, 3);
  EXPECT_TRUE(nearby[1] == (*arguments)[1]);
  int64_t moved = 0;
  for (int64_t i = 0; i < 64; ++i) {
    const double x = (*arguments)[0].get(i), y = nearby[0].get(i);
    EXPECT_LE(std::abs(x - y), 0x1p-6 * std::abs(x)) << i;
    moved += x != y ? 1 : 0;
  }
  EXPECT_GT(moved, 60);
}

}  // namespace
}  // namespace heddle::hlo
