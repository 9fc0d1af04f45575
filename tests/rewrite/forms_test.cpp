// The ways in which programs write attention (print_forms.py), each small and with a different size
// along every axis.
#include "rewrite/programs.h"

namespace heddle::testing {
namespace {

struct Expected {
  const char* name;
  int forwards, backwards;
};

class Form : public ::testing::TestWithParam<Expected> {};

TEST_P(Form, IsFusedAndKeepsItsMeaning) {
  const Expected& expected = GetParam();
  const Rewritten programs = rewritten(program_text(std::string("forms/") + expected.name));
  EXPECT_EQ(programs.forwards(), expected.forwards) << programs.reasons();
  EXPECT_EQ(programs.backwards(), expected.backwards) << programs.reasons();
  if (expected.forwards + expected.backwards == 0) {
    EXPECT_TRUE(hlo::equal(*programs.original, *programs.fused));
  } else {
    EXPECT_TRUE(same_meaning(programs, 1e-7));  // constants are f32
  }
}

TEST_P(Form, IsDoneOnce) {
  const Rewritten once = rewritten(program_text(std::string("forms/") + GetParam().name));
  const Rewritten twice = rewritten(hlo::write_text(*once.fused));
  EXPECT_EQ(twice.report.fusions.size(), 0u);
}

TEST(Rotation, IsPartOfTheCall) {
  for (const char* name :
       {"forms/rope", "forms/rope_grad", "gpt_checkpoint_f32", "gpt_checkpoint_bf16"}) {
    const Rewritten programs = rewritten(program_text(name));
    ASSERT_FALSE(programs.report.fusions.empty()) << name;
    for (const rewrite::Fusion& fusion : programs.report.fusions)
      EXPECT_NE(fusion.score.find("RoPE"), std::string::npos) << name << ": " << fusion.graph;
    // The rotations' halves are joined nowhere any more.
    for (const hlo::Computation* computation : programs.fused->computations())
      for (const hlo::Instruction* x : computation->instructions())
        EXPECT_FALSE(x->is(hlo::Opcode::concatenate) && x->shape().rank() == 4) << x->name();
  }
}

std::vector<Expected> fused() {
  std::vector<Expected> all;
  for (const char* name : {"additive_mask",
                           "bias_full",
                           "bias_per_head",
                           "by_logarithm",
                           "dropped_out",
                           "flash_by_hand",
                           "gradient_through_maximum",
                           "grouped_by_einsum",
                           "grouped_by_repeat",
                           "grouped_by_tile",
                           "heads_first",
                           "masked_twice",
                           "nested_selects",
                           "no_batch",
                           "no_maximum",
                           "normalised_late",
                           "one_head",
                           "one_key_head",
                           "rope",
                           "scaled_queries",
                           "scaled_twice",
                           "soft_capped",
                           "window",
                           "masked_after_softmax"})
    all.push_back({name, 1, 0});
  for (const char* name : {"additive_mask_grad",
                           "bias_full_grad",
                           "bias_per_head_grad",
                           "by_logarithm_grad",
                           "dropped_out_grad",
                           "flash_by_hand_grad",
                           "gradient_through_maximum_grad",
                           "grouped_by_einsum_grad",
                           "grouped_by_repeat_grad",
                           "grouped_by_tile_grad",
                           "heads_first_grad",
                           "masked_twice_grad",
                           "nested_selects_grad",
                           "no_batch_grad",
                           "no_maximum_grad",
                           "normalised_late_grad",
                           "one_head_grad",
                           "one_key_head_grad",
                           "rope_grad",
                           "scaled_queries_grad",
                           "scaled_twice_grad",
                           "soft_capped_grad",
                           "window_grad",
                           "loss_of_output",
                           "gradient_of_queries_only"})
    all.push_back({name, 1, 1});
  all.push_back({"layers_unrolled", 3, 3});
  all.push_back({"scan", 2, 1});
  all.push_back({"scan_checkpoint", 2, 1});
  return all;
}

std::vector<Expected> left_alone() {
  std::vector<Expected> all;
  for (const char* name :
       {"mask_is_data", "lengths_are_data", "probabilities_returned", "not_normalised",
        "normalised_over_queries", "fill_within_reach", "rows_without_keys", "relu_of_scores",
        "capped_after_mask", "causal_by_cumsum", "causal_by_cumsum_grad"})
    all.push_back({name, 0, 0});
  return all;
}

const auto kName = [](const auto& info) { return std::string(info.param.name); };
INSTANTIATE_TEST_SUITE_P(Fused, Form, ::testing::ValuesIn(fused()), kName);
INSTANTIATE_TEST_SUITE_P(LeftAlone, Form, ::testing::ValuesIn(left_alone()), kName);

}  // namespace
}  // namespace heddle::testing
