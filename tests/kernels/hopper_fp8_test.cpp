// The Hopper forward and backward of fp8 operands: head dims with every kind of mask.
#include <gtest/gtest.h>

#include "engine/cuda/attention_backward_fp8_sm90.h"
#include "engine/cuda/attention_forward_fp8_sm90.h"
#include "kernels/cases.h"
#include "kernels/compiled.h"
#include "problem/check.h"

namespace heddle::engine::cuda {
namespace {

class HopperFp8 : public testing::TestWithParam<Case> {};

TEST_P(HopperFp8, Compiles) {
  const problem::Fp8AttentionProblem problem = fp8_of(GetParam());
  ASSERT_TRUE(problem::check(problem).is_ok()) << problem::check(problem).message();
  expect_clean(lower_forward_fp8_sm90(problem, *target_named("sm_90a")), "sm_90a",
               {{"attention_forward_fp8", {"QGMMA", "UTMALDG"}}});
}

std::vector<Case> cases() {
  using F = Feature;
  std::vector<Case> all;
  for (auto [qk, v] : {std::pair{64, 64}, {128, 128}, {64, 128}, {128, 64}}) {
    for (const auto& features :
         {std::vector<F>{}, {F::causal}, {F::window}, {F::lengths}, {F::causal, F::lengths}})
      all.push_back({DataType::bf16, qk, v, features, "sm_90a"});
  }
  return all;
}

INSTANTIATE_TEST_SUITE_P(Matrix, HopperFp8, testing::ValuesIn(cases()),
                         [](const testing::TestParamInfo<Case>& info) {
                           return "fp8_of_" + title(info.param);
                         });

class HopperFp8Backward : public testing::TestWithParam<Case> {};

TEST_P(HopperFp8Backward, Compiles) {
  const problem::Fp8AttentionBackwardProblem problem = fp8_backward_of(GetParam());
  ASSERT_TRUE(problem::check(problem).is_ok()) << problem::check(problem).message();
  expect_clean(lower_backward_fp8_sm90(problem, *target_named("sm_90a")), "sm_90a",
               {{"attention_backward_fp8", {"QGMMA", "HGMMA", "UTMALDG"}}});
}

std::vector<Case> backward_cases() {
  using F = Feature;
  std::vector<Case> all;
  for (const auto& features : {std::vector<F>{},
                               {F::causal},
                               {F::window},
                               {F::deterministic},
                               {F::causal, F::deterministic}})
    all.push_back({DataType::bf16, 128, 128, features, "sm_90a"});
  return all;
}

INSTANTIATE_TEST_SUITE_P(Matrix, HopperFp8Backward, testing::ValuesIn(backward_cases()),
                         [](const testing::TestParamInfo<Case>& info) {
                           return "fp8_of_" + title(info.param);
                         });

}  // namespace
}  // namespace heddle::engine::cuda
