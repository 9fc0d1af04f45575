// The example training step: every layer's attention, forward and backward, in loops, with and
// without recomputation.
#include "rewrite/programs.h"

namespace heddle::testing {
namespace {

class Gpt : public ::testing::TestWithParam<const char*> {};

TEST_P(Gpt, AttentionIsFusedInEveryLayer) {
  const Rewritten programs = rewritten(program_text(GetParam()));
  const bool again = std::string(GetParam()).find("checkpoint") != std::string::npos;
  EXPECT_EQ(programs.forwards(), again ? 2 : 1) << programs.reasons();
  EXPECT_EQ(programs.backwards(), 1) << programs.reasons();
  for (const rewrite::Fusion& fusion : programs.report.fusions) {
    EXPECT_EQ(fusion.batch, 2);
    EXPECT_EQ(fusion.q_heads, 8);
    EXPECT_EQ(fusion.kv_heads, 2);
    EXPECT_EQ(fusion.q_len, 96);
    EXPECT_EQ(fusion.kv_len, 96);
    EXPECT_EQ(fusion.head_dim, 32);
    EXPECT_EQ(fusion.mask, "causal");
  }
  // Nothing of rows x keys is left, in no loop's state either.
  for (const hlo::Computation* computation : programs.fused->computations())
    for (const hlo::Instruction* x : computation->instructions())
      EXPECT_EQ(hlo::to_string(x->shape()).find("96,96]"), std::string::npos) << x->name();
}

TEST_P(Gpt, MeaningIsKept) { EXPECT_TRUE(same_meaning(rewritten(program_text(GetParam())))); }

INSTANTIATE_TEST_SUITE_P(Recorded, Gpt,
                         ::testing::Values("gpt_f32", "gpt_bf16", "gpt_checkpoint_f32",
                                           "gpt_checkpoint_bf16"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace heddle::testing
