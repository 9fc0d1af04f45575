// Every recorded program: what is found in it, and that its meaning is kept.
#include "rewrite/programs.h"

namespace heddle::testing {
namespace {

struct Expected {
  const char* name;
  int forwards, backwards;
  int64_t kv_heads;
  const char* mask;
};

class Fixture : public ::testing::TestWithParam<Expected> {};

TEST_P(Fixture, IsFusedAndKeepsItsMeaning) {
  const Expected& expected = GetParam();
  const Rewritten programs = rewritten(small_program(expected.name));
  EXPECT_EQ(programs.forwards(), expected.forwards) << programs.reasons();
  EXPECT_EQ(programs.backwards(), expected.backwards) << programs.reasons();
  EXPECT_EQ(programs.reasons(), "");
  for (const rewrite::Fusion& fusion : programs.report.fusions) {
    EXPECT_EQ(fusion.batch, 2);
    EXPECT_EQ(fusion.q_heads, 4);
    EXPECT_EQ(fusion.kv_heads, expected.kv_heads);
    EXPECT_EQ(fusion.q_len, 24);
    EXPECT_EQ(fusion.kv_len, 24);
    EXPECT_EQ(fusion.head_dim, 8);
    EXPECT_EQ(fusion.dtype, "bf16");
    EXPECT_EQ(fusion.mask, expected.mask);
  }
  EXPECT_TRUE(same_meaning(programs, 1e-7));  // constants are f32
  // No product of queries and keys is left.
  for (const hlo::Computation* computation : programs.fused->computations())
    for (const hlo::Instruction* x : computation->instructions())
      EXPECT_FALSE(x->is(hlo::Opcode::dot) || x->is(hlo::Opcode::exponential)) << x->name();
}

std::vector<Expected> fixtures() {
  return {
      {"fwd_plain_kv4", 1, 0, 4, "none"},
      {"fwd_plain_kv4.optimized", 1, 0, 4, "none"},
      {"fwd_causal_kv4", 1, 0, 4, "causal"},
      {"fwd_causal_kv4.optimized", 1, 0, 4, "causal"},
      {"grad_plain_kv4", 1, 1, 4, "none"},
      {"grad_plain_kv4.optimized", 1, 1, 4, "none"},
      {"grad_causal_kv4", 1, 1, 4, "causal"},
      {"grad_causal_kv4.optimized", 1, 1, 4, "causal"},
      {"grad_causal_kv1", 1, 1, 1, "causal"},
      {"grad_causal_kv1.optimized", 1, 1, 1, "causal"},
      {"grad_jaxnn_kv1", 1, 1, 1, "none"},
      {"grad_jaxnn_kv1.optimized", 1, 1, 1, "none"},
      {"grad_jaxnn_causal_kv4", 1, 1, 4, "causal"},
      {"grad_jaxnn_causal_kv4.optimized", 1, 1, 4, "causal"},
      {"grad_late_norm_kv4", 1, 1, 4, "causal"},
      {"grad_late_norm_kv4.optimized", 1, 1, 4, "causal"},
      {"grad_softcap_kv4", 1, 1, 4, "causal"},
      {"grad_softcap_kv4.optimized", 1, 1, 4, "causal"},
      {"grad_dropout_kv4", 1, 1, 4, "causal"},
      {"grad_dropout_kv4.optimized", 1, 1, 4, "causal"},
      {"scan_grad_causal_kv4", 1, 1, 4, "causal"},
      {"scan_grad_causal_kv4.optimized", 1, 1, 4, "causal"},
      {"scan_remat_grad_causal_kv4", 2, 1, 4, "causal"},
      {"scan_remat_grad_causal_kv4.optimized", 2, 1, 4, "causal"},
  };
}

INSTANTIATE_TEST_SUITE_P(Recorded, Fixture, ::testing::ValuesIn(fixtures()), [](const auto& info) {
  std::string name = info.param.name;
  for (char& c : name)
    if (c == '.') c = '_';
  return name;
});

}  // namespace
}  // namespace heddle::testing
