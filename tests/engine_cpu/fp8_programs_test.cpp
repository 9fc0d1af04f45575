// Attention on fp8 operands in every instruction set, against the definition: random lengths,
// bounds, heads, types and scales, poison in the gaps.
#include "support/fp8_programs.h"

#include <gtest/gtest.h>

#include "engine/cpu/engine.h"
#include "engine_cpu/levels.h"
#include "graph/validate.h"
#include "support/compare.h"
#include "support/part.h"
#include "support/run.h"

namespace heddle::testing {
namespace {

void expect_met(Program program) {
  const Status valid = graph::validate(program.graph);
  ASSERT_TRUE(valid.is_ok()) << valid.message();
  // Naive: weights and their gradients in fp8, all else in f32.
  const Definition definition(program, DataType::f32);
  for (const engine::cpu::Isa level : available_levels()) {
    const ForcedLevel forced(level);
    Program results = program;
    const Status status = run(results, engine::cpu_engine());
    ASSERT_TRUE(status.is_ok()) << status.message();
    ASSERT_TRUE(definition.is_met_by(results)) << engine::cpu::name(level);
  }
}

TEST(Fp8Programs, ForwardMatchesTheDefinition) {
  for (uint64_t seed = 0; seed < 150; ++seed) {
    if (!part().has(seed)) continue;
    SCOPED_TRACE("seed " + std::to_string(seed));
    Random random(seed);
    expect_met(random_sdpa_fp8(random));
    if (HasFatalFailure()) return;
  }
}

TEST(Fp8Programs, BackwardMatchesTheDefinition) {
  for (uint64_t seed = 0; seed < 150; ++seed) {
    if (!part().has(seed)) continue;
    SCOPED_TRACE("seed " + std::to_string(seed));
    Random random(seed);
    expect_met(random_sdpa_fp8_backward(random));
    if (HasFatalFailure()) return;
  }
}

}  // namespace
}  // namespace heddle::testing
