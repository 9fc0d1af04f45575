#include "reference/precision.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

namespace heddle::reference {
namespace {

double dot_by_fp8_cores(const std::vector<double>& terms) {
  const std::vector<double> ones(terms.size(), 1);
  Precision precision = DataType::f32;
  precision.of_fp8_cores = true;
  return dot(terms.data(), ones.data(), static_cast<int64_t>(terms.size()), precision);
}

TEST(Precision, Fp8CoresKeep13BitsBehindThePointOfEachPartialSum) {
  const double kept = std::exp2(-13), lost = std::exp2(-14);
  EXPECT_EQ(dot_by_fp8_cores({1, kept}), 1 + kept);
  EXPECT_EQ(dot_by_fp8_cores({1, kept, lost}), 1 + kept);
  // Cut off, not rounded, to the side of 0.
  EXPECT_EQ(dot_by_fp8_cores({-1, -kept, -lost, -lost / 2}), -1 - kept);
  // 32 products are summed before.
  EXPECT_EQ(dot_by_fp8_cores({1, lost, lost}), 1 + kept);
  std::vector<double> terms(34);
  terms[0] = 1, terms[32] = terms[33] = lost;
  EXPECT_EQ(dot_by_fp8_cores(terms), 1 + kept);
  terms[31] = lost, terms[33] = 0;
  EXPECT_EQ(dot_by_fp8_cores(terms), 1) << "a partial sum is cut off before the next 32";
}

TEST(Precision, Fp8CoresKeepWhatIsNotFinite) {
  const double infinity = std::numeric_limits<double>::infinity();
  EXPECT_EQ(dot_by_fp8_cores({1, -infinity}), -infinity);
  EXPECT_TRUE(std::isnan(dot_by_fp8_cores({infinity, -infinity})));
  EXPECT_EQ(dot_by_fp8_cores({}), 0);
}

}  // namespace
}  // namespace heddle::reference
