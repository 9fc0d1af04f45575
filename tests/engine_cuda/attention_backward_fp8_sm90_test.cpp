#include <gtest/gtest.h>

#include "kernels/cases.h"
#include "kernels/lowered.h"

namespace heddle::engine::cuda {
namespace {

Case of(int qk, int v, std::vector<Feature> features = {}) {
  return {.qk_dim = qk, .v_dim = v, .features = std::move(features)};
}

TEST(Fp8BackwardSm90, QueriesAreWidenedBeforeTheAttention) {
  const Result<Lowering> lowering = lowered(fp8_backward_of(of(128, 128)), "sm_90a");
  ASSERT_TRUE(lowering.is_ok()) << lowering.status().message();
  ASSERT_EQ(lowering->kernels.size(), 3u);
  // Of 512 rows of 2 x 8 heads: log-sum-exp, delta and sums of dQ; the scales; Q and dO in bf16.
  constexpr int64_t kRows = 2 * 8 * 512;
  EXPECT_EQ(lowering->workspace_bytes, kRows * (4 + 4 + 4 * 128) + 256 + 2 * kRows * 2 * 128);
  EXPECT_EQ(lowering->description.find("fp8 attention backward, Hopper kernels, 64 x 128 tiles"),
            0u)
      << lowering->description;
}

TEST(Fp8BackwardSm90, DqIsNotMadeOfSumsThatNobodyWants) {
  problem::Fp8AttentionBackwardProblem problem = fp8_backward_of(of(128, 128));
  problem.structure.attention.d_q = problem::kAbsent;
  problem.structure.amax_d_q = problem::kAbsent;
  const Result<Lowering> lowering = lowered(problem, "sm_90a");
  ASSERT_TRUE(lowering.is_ok()) << lowering.status().message();
  EXPECT_EQ(lowering->kernels.size(), 2u);
}

TEST(Fp8BackwardSm90, KernelsAreOfStructureAlone) {
  const auto sources = [](const Case& c) { return sources_of(fp8_backward_of(c), "sm_90a"); };
  Case longer = of(128, 128, {Feature::causal});
  longer.length = 3000;
  EXPECT_EQ(sources(of(128, 128, {Feature::causal})), sources(longer));
  EXPECT_NE(sources(of(128, 128, {Feature::causal})), sources(of(128, 128)));
}

std::string why_not(const problem::Fp8AttentionBackwardProblem& problem) {
  return why_passed_over(problem, "sm_90a");
}

/// What it does not take is widened to 16 bits, and says why.
TEST(Fp8BackwardSm90, SaysWhatItDoesNotTake) {
  EXPECT_EQ(why_not(fp8_backward_of(of(128, 128))), "");
  EXPECT_EQ(why_not(fp8_backward_of(of(128, 128, {Feature::window, Feature::deterministic}))), "");
  EXPECT_NE(why_not(fp8_backward_of(of(64, 128))).find("head dims are 64 (q, k) and 128 (v)"),
            std::string::npos);
  EXPECT_NE(why_not(fp8_backward_of(of(128, 128, {Feature::lengths}))).find("takes no lengths"),
            std::string::npos);
  EXPECT_NE(why_not(fp8_backward_of(of(128, 128, {Feature::ragged}))).find("is not dense"),
            std::string::npos);
  problem::Fp8AttentionBackwardProblem e5m2 = fp8_backward_of(of(128, 128));
  e5m2.structure.attention.forward.type(e5m2.structure.attention.d_k).dtype = DataType::f8e5m2;
  EXPECT_NE(why_not(e5m2).find("dK is f8e5m2, expected f8e4m3"), std::string::npos)
      << why_not(e5m2);
  problem::Fp8AttentionBackwardProblem strided = fp8_backward_of(of(128, 128));
  strided.sizes.layout(strided.structure.attention.d_o).strides[2] += 8;
  EXPECT_NE(why_not(strided).find("multiples of 16 bytes"), std::string::npos);
}

}  // namespace
}  // namespace heddle::engine::cuda
