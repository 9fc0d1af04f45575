// Attention on fp8 operands by kernels of 16 bits, with what widens its tensors before and makes
// fp8 of its results behind.
#include <gtest/gtest.h>

#include "engine/cuda/fp8_stages.h"
#include "kernels/cases.h"
#include "kernels/compiled.h"
#include "problem/check.h"

namespace heddle::engine::cuda {
namespace {

class Fp8By16Bits : public testing::TestWithParam<Case> {};

TEST_P(Fp8By16Bits, Compiles) {
  const std::string architecture = GetParam().architecture;
  const problem::Fp8AttentionProblem forward = fp8_of(GetParam());
  ASSERT_TRUE(problem::check(forward).is_ok()) << problem::check(forward).message();
  expect_clean(lower_fp8_by_16_bits(forward, *target_named(architecture)), architecture);
  const problem::Fp8AttentionBackwardProblem backward = fp8_backward_of(GetParam());
  ASSERT_TRUE(problem::check(backward).is_ok()) << problem::check(backward).message();
  expect_clean(lower_fp8_by_16_bits(backward, *target_named(architecture)), architecture);
}

std::vector<Case> cases() {
  using F = Feature;
  std::vector<Case> all;
  for (const char* architecture : {"sm_80", "sm_90a"}) {
    for (const int d : {64, 128, 256}) {
      for (const auto& features : {std::vector<F>{F::causal}, {F::window, F::lengths}, {F::ragged}})
        all.push_back({DataType::bf16, d, d, features, architecture});
    }
  }
  return all;
}

INSTANTIATE_TEST_SUITE_P(Matrix, Fp8By16Bits, testing::ValuesIn(cases()),
                         [](const testing::TestParamInfo<Case>& info) {
                           return "fp8_of_" + title(info.param);
                         });

}  // namespace
}  // namespace heddle::engine::cuda
