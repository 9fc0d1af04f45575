// Convolutions, held against what XLA makes of them (print_convolutions.py).
#include <gtest/gtest.h>

#include "evaluated.h"
#include "fixtures.h"

namespace heddle::hlo {
namespace {

std::vector<std::string> convolution_paths() {
  std::vector<std::string> paths;
  for (const auto& entry :
       std::filesystem::directory_iterator(HEDDLE_TEST_DATA "/hlo/convolutions"))
    paths.push_back(entry.path().string());
  std::sort(paths.begin(), paths.end());
  return paths;
}

class Convolutions : public testing::TestWithParam<std::string> {};

TEST_P(Convolutions, GiveWhatXlaGives) { EXPECT_EQ(value_of(file_text(GetParam())), "true"); }

INSTANTIATE_TEST_SUITE_P(Xla, Convolutions, testing::ValuesIn(convolution_paths()),
                         [](const auto& of) { return fixture_name(of.param); });

const std::string kOperands =
    "x = f32[1,1,4] constant({{{1, 2, 3, 4}}}) k = f32[1,1,2] constant({{{1, 10}}}) ";

TEST(Convolution, OfAReversedWindow) {
  EXPECT_EQ(value(kOperands + "ROOT r = f32[1,1,3] convolution(x, k), window={size=2}, "
                              "dim_labels=bf0_io0->bf0"),
            "{ { { 21, 32, 43 } } }");
  EXPECT_EQ(value(kOperands + "ROOT r = f32[1,1,3] convolution(x, k), "
                              "window={size=2 rhs_reversal=1}, dim_labels=bf0_io0->bf0"),
            "{ { { 12, 23, 34 } } }");
}

TEST(Convolution, IsSummedInF32AndRoundedOnce) {
  EXPECT_EQ(value("x = bf16[1,3,1] constant({{{16}, {1}, {1}}}) "
                  "k = bf16[3,1,1] constant({{{16}}, {{1}}, {{1}}}) "
                  "ROOT r = bf16[1,1,1] convolution(x, k), window={size=1}, "
                  "dim_labels=bf0_io0->bf0"),
            "{ { { 258 } } }");
}

TEST(Convolution, OfNothing) {
  EXPECT_EQ(value("x = f32[1,1,1] constant({{{1}}}) k = f32[1,1,2] constant({{{1, 10}}}) "
                  "ROOT r = f32[1,1,0] convolution(x, k), window={size=2}, "
                  "dim_labels=bf0_io0->bf0"),
            "{ { {} } }");
}

TEST(Convolution, ThatDoesNotFitIsRefused) {
  const auto refusal = [](const std::string& attributes, const std::string& shape = "f32[1,1,3]") {
    return value(kOperands + "ROOT r = " + shape + " convolution(x, k), " + attributes);
  };
  EXPECT_EQ(refusal("window={size=2}"),
            "cannot evaluate r: convolution with dim_labels '' and a window of 1 dimensions is not "
            "known");
  for (const char* labels : {"bf0_io0", "bf_io0->bf0", "bf1_io0->bf0", "bb0_io0->bf0",
                             "bf0_io0->bf0?", "bf01_io01->bf01"}) {
    EXPECT_EQ(refusal(std::string("window={size=2}, dim_labels=") + labels),
              std::string("cannot evaluate r: convolution with dim_labels '") + labels +
                  "' and a window of 1 dimensions is not known");
  }
  const std::string shapes =
      "cannot evaluate r: convolution of f32[1,1,4] and f32[1,1,2] does not give ";
  const std::string plain = "dim_labels=bf0_io0->bf0";
  EXPECT_EQ(refusal("window={size=2}, " + plain, "f32[1,1,4]"), shapes + "f32[1,1,4]");
  EXPECT_EQ(refusal("window={size=3}, " + plain), shapes + "f32[1,1,3]");
  EXPECT_EQ(refusal("window={size=2 stride=0}, " + plain), shapes + "f32[1,1,3]");
  EXPECT_EQ(refusal("window={size=2 pad=4611686018427387904_0}, " + plain), shapes + "f32[1,1,3]");
  EXPECT_EQ(refusal("window={size=2}, feature_group_count=2, " + plain), shapes + "f32[1,1,3]");
  EXPECT_EQ(refusal("window={size=2}, batch_group_count=2, " + plain), shapes + "f32[1,1,3]");
  EXPECT_EQ(refusal("window={size=2}, feature_group_count=0, " + plain), shapes + "f32[1,1,3]");
  EXPECT_EQ(value("x = s32[1,1,1] constant({{{1}}}) ROOT r = s32[1,1,1] convolution(x, x), "
                  "window={size=1}, " +
                  plain),
            "cannot evaluate r: convolution of s32 that gives s32 is not known");
  EXPECT_EQ(value("x = f32[1,1,1] constant({{{1}}}) ROOT r = f32[1,1,1] convolution(x), "
                  "window={size=1}, " +
                  plain),
            "cannot evaluate r: convolution takes two arrays");
}

}  // namespace
}  // namespace heddle::hlo
