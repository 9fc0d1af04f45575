#include <gtest/gtest.h>

#include "kernels/cases.h"
#include "kernels/lowered.h"

namespace heddle::engine::cuda {
namespace {

std::string refusal(const problem::Fp8AttentionProblem& problem,
                    const std::string& architecture = "sm_90a") {
  const Result<Lowering> lowering = lowered(problem, architecture);
  return lowering.is_ok() ? "" : lowering.status().message();
}

Case of(int qk, int v, std::vector<Feature> features = {}) {
  return {.qk_dim = qk, .v_dim = v, .features = std::move(features)};
}

TEST(Fp8ForwardSm90, TurnsValuesBeforeTheAttention) {
  const Result<Lowering> lowering = lowered(fp8_of(of(128, 64)), "sm_90a");
  ASSERT_TRUE(lowering.is_ok()) << lowering.status().message();
  ASSERT_EQ(lowering->kernels.size(), 2u);
  // A tile of 128 rows of 128 keys for each 128 of 512 keys of 2 x 8 heads, behind the counter.
  EXPECT_EQ(lowering->workspace_bytes, 256 + 2 * 8 * 4 * 128 * 128);
  EXPECT_NE(lowering->description.find("fp8 attention forward, Hopper kernel"), std::string::npos);
}

TEST(Fp8ForwardSm90, KernelsAreOfStructureAlone) {
  const auto sources = [](const Case& c) { return sources_of(fp8_of(c), "sm_90a"); };
  Case longer = of(128, 128, {Feature::causal});
  longer.length = 3000;
  EXPECT_EQ(sources(of(128, 128, {Feature::causal})), sources(longer));
  EXPECT_NE(sources(of(128, 128, {Feature::causal})), sources(of(128, 128)));
}

std::string why_not(const problem::Fp8AttentionProblem& problem) {
  return why_passed_over(problem, "sm_90a");
}

/// What it does not take is widened to 16 bits, and says why.
TEST(Fp8ForwardSm90, SaysWhatItDoesNotTake) {
  EXPECT_EQ(why_not(fp8_of(of(128, 128))), "");
  EXPECT_NE(why_not(fp8_of(of(96, 96))).find("head dim of q and k is 96"), std::string::npos);
  EXPECT_NE(why_not(fp8_of(of(128, 128, {Feature::ragged}))).find("is not dense"),
            std::string::npos);
  problem::Fp8AttentionProblem e5m2 = fp8_of(of(128, 128));
  e5m2.structure.attention.type(e5m2.structure.attention.k).dtype = DataType::f8e5m2;
  EXPECT_NE(why_not(e5m2).find("sdpa k is f8e5m2, expected f8e4m3"), std::string::npos);
  problem::Fp8AttentionProblem strided = fp8_of(of(128, 128));
  strided.sizes.layout(strided.structure.attention.q).strides[2] += 8;
  EXPECT_NE(why_not(strided).find("multiples of 16 bytes"), std::string::npos);
  problem::Fp8AttentionProblem apart = fp8_of(of(128, 128, {Feature::lengths}));
  EXPECT_EQ(why_not(apart), "");
  apart.sizes.layout(apart.structure.attention.kv_lengths).strides[0] = 3;
  EXPECT_NE(refusal(apart).find("sdpa seq_len_kv has dims"), std::string::npos) << refusal(apart);
  EXPECT_NE(refusal(fp8_of(of(128, 128, {Feature::bias}))).find("scores are changed"),
            std::string::npos);
}

TEST(Fp8By16Bits, TensorsAreWidenedAndResultsScaled) {
  const Result<Lowering> forward = lowered(fp8_of(of(96, 96)), "sm_80");
  ASSERT_TRUE(forward.is_ok()) << forward.status().message();
  EXPECT_EQ(forward->description.find("2 factors, sm_80; q scaled from f8e4m3 to f16, sm_80; "), 0u)
      << forward->description;
  EXPECT_NE(forward->description.find("; o scaled from f32 to f8e4m3, sm_80; the largest of P"),
            std::string::npos)
      << forward->description;
  const Result<Lowering> backward = lowered(fp8_backward_of(of(64, 64)), "sm_90a");
  ASSERT_TRUE(backward.is_ok()) << backward.status().message();
  EXPECT_NE(backward->description.find("Hopper"), std::string::npos) << backward->description;
  EXPECT_NE(backward->description.find("dV scaled from f32 to f8e4m3, sm_90a; 1 factors"),
            std::string::npos)
      << backward->description;
}

TEST(Fp8By16Bits, PagesAreWidenedWhereTheyLie) {
  problem::Fp8AttentionProblem paged = fp8_of(of(96, 96, {Feature::paged}));
  const Result<Lowering> lowering = lowered(paged, "sm_80");
  ASSERT_TRUE(lowering.is_ok()) << lowering.status().message();
  EXPECT_NE(lowering->description.find("k scaled from f8e4m3 to f16"), std::string::npos)
      << lowering->description;
  EXPECT_EQ(lowering->description.find("k copied"), std::string::npos) << lowering->description;
}

TEST(Fp8By16Bits, RingsAreRefused) {
  problem::Fp8AttentionProblem ring = fp8_of(of(96, 96));
  ring.structure.attention.type(ring.structure.attention.k).storage = problem::Storage::in_ring();
  EXPECT_NE(refusal(ring).find("k is a ring, expected dense, ragged or pages"), std::string::npos)
      << refusal(ring);
}

}  // namespace
}  // namespace heddle::engine::cuda
