#include <gtest/gtest.h>

#include <cmath>
#include <set>
#include <string>
#include <tuple>

#include "core/dropout_bits.h"

namespace heddle {
namespace {

using Words2 = std::array<uint32_t, 2>;
using Words4 = std::array<uint32_t, 4>;

// The known answers that the paper's authors publish with their own implementation.
TEST(Philox, KnownAnswers) {
  EXPECT_EQ(philox_4x32_10({0, 0, 0, 0}, {0, 0}),
            (Words4{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(
      philox_4x32_10({0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}, {0xffffffff, 0xffffffff}),
      (Words4{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(
      philox_4x32_10({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
      (Words4{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

// The same, with the seven rounds that dropout takes.
TEST(Philox, KnownAnswersOfSevenRounds) {
  EXPECT_EQ(philox_4x32<7>({0, 0, 0, 0}, {0, 0}),
            (Words4{0x5f6fb709, 0x0d893f64, 0x4f121f81, 0x4f730a48}));
  EXPECT_EQ(
      philox_4x32<7>({0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}, {0xffffffff, 0xffffffff}),
      (Words4{0x5207ddc2, 0x45165e59, 0x4d8ee751, 0x8c52f662}));
  EXPECT_EQ(
      philox_4x32<7>({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
      (Words4{0x4dfccaba, 0x190a87f0, 0xc47362ba, 0xb6b5242a}));
}

TEST(Threefry, KnownAnswers) {
  EXPECT_EQ(threefry_2x32_20({0, 0}, {0, 0}), (Words2{0x6b200159, 0x99ba4efe}));
  EXPECT_EQ(threefry_2x32_20({0xffffffff, 0xffffffff}, {0xffffffff, 0xffffffff}),
            (Words2{0x1cb996fc, 0xbb002be7}));
  EXPECT_EQ(threefry_2x32_20({0x243f6a88, 0x85a308d3}, {0x13198a2e, 0x03707344}),
            (Words2{0xc4923a9c, 0x483df7a0}));
}

// jax.random.bits(jax.random.key(42), (6,)) of JAX 0.10.2.
TEST(Threefry, DrawsWhatJaxDraws) {
  const uint32_t expected[] = {0x7d1c13a2, 0xae0730d9, 0x9dc3f9f9,
                               0x8f9ec1d7, 0x735d7315, 0x95fb4ed8};
  for (uint64_t i = 0; i < 6; ++i) EXPECT_EQ(jax_random_bits({0, 42}, i), expected[i]);
}

// jax.random.bernoulli(jax.random.key(42), 0.9, (32,)) of JAX 0.10.2.
TEST(DropoutBits, KeepWhatJaxKeeps) {
  const std::string expected = "11111111111101111111111111111011";
  std::string kept;
  for (uint64_t i = 0; i < 32; ++i)
    kept += threefry_keeps({0, 42}, 1 - double{0.9f}, i) ? '1' : '0';
  EXPECT_EQ(kept, expected);
}

// Both generators can be evaluated while compiling.
static_assert(philox_4x32_10({0, 0, 0, 0}, {0, 0})[0] == 0x6627e8d5);
static_assert(threefry_2x32_20({0, 0}, {0, 0})[0] == 0x6b200159);

TEST(DropoutBits, ThresholdsAreExact) {
  EXPECT_EQ(threefry_threshold(0), 1u << 23);
  EXPECT_EQ(threefry_threshold(0.5), 1u << 22);
  EXPECT_EQ(threefry_threshold(1 - 3.5 / 8388608), 4u);  // 0, 1, 2, 3 are below 3.5
  EXPECT_EQ(threefry_threshold(1 - 3.0 / 8388608), 3u);
}

TEST(DropoutBits, TheRarerEventHasTheLowValues) {
  const auto expect = [](double p, uint32_t low, bool keeps_low) {
    EXPECT_EQ(philox_rule(p).low, low) << p;
    EXPECT_EQ(philox_rule(p).keeps_low, keeps_low) << p;
  };
  expect(0, 0, false);
  expect(0.1, 3277, false);  // 3276.8
  expect(0.5, 16384, false);
  expect(0.75, 8192, true);
  expect(0.9, 3277, true);
  // Some weights are dropped and some kept, however near to 0 or 1.
  for (double p : {1e-9, 1e-300}) expect(p, 1, false);
  for (double p : {1 - 1e-9, std::nextafter(1.0, 0.0)}) expect(p, 1, true);
  EXPECT_FALSE(philox_rule(1e-9).keeps(0));
  EXPECT_TRUE(philox_rule(1e-9).keeps(1));
  EXPECT_TRUE(philox_rule(1 - 1e-9).keeps(0));
  EXPECT_FALSE(philox_rule(1 - 1e-9).keeps(1));
}

TEST(DropoutBits, TheShareIsRightToTheLastBit) {
  for (double p = 1.0 / 32768; p < 1; p += 0.00371) {
    const PhiloxRule rule = philox_rule(p);
    int dropped = 0;
    for (uint32_t bits = 0; bits < 32768; ++bits) dropped += !rule.keeps(bits);
    EXPECT_NEAR(dropped / 32768.0, p, 1.0 / 65536) << p;
  }
}

// Each of the eight weights of an evaluation has bits of its own, and no two places in 16 x 32
// share theirs.
TEST(DropoutBits, EveryWeightHasItsOwnBits) {
  std::set<std::tuple<Words4, uint32_t, uint32_t>> places;
  for (uint32_t row = 0; row < 16; ++row) {
    for (uint32_t column = 0; column < 32; ++column) {
      const Words4 words = philox_dropout_words(1, 2, 3, row, column);
      EXPECT_EQ(words, philox_dropout_words(1, 2, 3, row ^ 8, column ^ 9));
      places.emplace(words, row / 8 % 2 + column / 8 % 2 * 2, column % 2);
      const uint32_t bits = words[row / 8 % 2 + column / 8 % 2 * 2] >> column % 2 * 16 & 0x7fff;
      for (double p : {0.1, 0.5, 0.9})
        EXPECT_EQ(philox_keeps(1, 2, p, 3, row, column), philox_rule(p).keeps(bits));
    }
  }
  EXPECT_EQ(places.size(), 16u * 32u);
}

TEST(DropoutBits, NoProbabilityKeepsAll) {
  for (uint32_t column = 0; column < 1000; ++column) {
    EXPECT_TRUE(philox_keeps(1, 2, 0, 3, 4, column));
    EXPECT_TRUE(threefry_keeps({1, 2}, 0, column));
  }
}

TEST(DropoutBits, KeepsTheShareItShould) {
  int philox = 0, likely = 0, threefry = 0;
  constexpr int kCount = 1 << 20;
  for (int i = 0; i < kCount; ++i) {
    philox += philox_keeps(42, 7, 0.3, 5, static_cast<uint32_t>(i >> 10),
                           static_cast<uint32_t>(i & 1023));
    likely += philox_keeps(42, 7, 0.7, 5, static_cast<uint32_t>(i >> 10),
                           static_cast<uint32_t>(i & 1023));
    threefry += threefry_keeps({0, 42}, 0.3, static_cast<uint64_t>(i));
  }
  const double sigma = std::sqrt(0.3 * 0.7 / kCount);
  EXPECT_NEAR(philox / double{kCount}, 0.7, 5 * sigma);
  EXPECT_NEAR(likely / double{kCount}, 0.3, 5 * sigma);
  EXPECT_NEAR(threefry / double{kCount}, 0.7, 5 * sigma);
}

TEST(DropoutBits, EverySeedAndOffsetBitMatters) {
  const auto words = [](int64_t seed, int64_t offset) {
    return philox_dropout_words(seed, offset, 3, 4, 5);
  };
  for (int bit = 0; bit < 64; ++bit) {
    const auto flip = static_cast<int64_t>(uint64_t{1} << bit);
    EXPECT_NE(words(flip, 0), words(0, 0)) << bit;
    EXPECT_NE(words(0, flip), words(0, 0)) << bit;
  }
}

}  // namespace
}  // namespace heddle
