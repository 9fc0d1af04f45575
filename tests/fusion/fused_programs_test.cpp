// Random programs, fused and run on the CPU engine, against the definition of the unfused graph.
#include <gtest/gtest.h>

#include "engine/cpu/engine.h"
#include "support/attention_programs.h"
#include "support/compare.h"
#include "support/run.h"

namespace heddle::testing {
namespace {

AttentionOptions with_rope() {
  AttentionOptions options;
  options.rope = 0.6;
  return options;
}

TEST(FusedPrograms, ForwardMatchesTheUnfusedDefinition) {
  for (uint64_t seed = 0; seed < 1000; ++seed) {
    Random random(seed);
    Program program = random_sdpa(random, with_rope());
    const Status status = run(program, engine::cpu_engine());
    ASSERT_TRUE(status.is_ok()) << status.message() << ", seed " << seed;
    ASSERT_TRUE(matches_reference(program, io_dtype(program)));
  }
}

TEST(FusedPrograms, BackwardMatchesTheUnfusedDefinition) {
  for (uint64_t seed = 0; seed < 1000; ++seed) {
    Random random(seed);
    Program program = random_sdpa_backward(random, with_rope());
    const Status status = run(program, engine::cpu_engine());
    ASSERT_TRUE(status.is_ok()) << status.message() << ", seed " << seed;
    ASSERT_TRUE(matches_reference(program, io_dtype(program)));
  }
}

}  // namespace
}  // namespace heddle::testing
