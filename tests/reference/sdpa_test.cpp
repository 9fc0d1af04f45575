#include <gtest/gtest.h>

#include "graph/validate.h"
#include "reference/evaluate.h"
#include "support/attention_programs.h"
#include "support/compare.h"

namespace heddle::testing {
namespace {

// The definition, rounded once to the results' dtypes, is itself within tolerance: the measure, the
// random programs and the poison checks agree with each other over the whole contract.
void expect_programs_evaluate(Program (*random_program)(Random&, const AttentionOptions&)) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    Random random(seed);
    AttentionOptions options;
    options.rope = 0.3;
    Program program = random_program(random, options);
    const Status valid = graph::validate(program.graph);
    ASSERT_TRUE(valid.is_ok()) << valid.message() << " seed " << seed;
    const reference::Buffers buffers = program.buffers();
    const auto values = reference::evaluate(program.graph, buffers);
    ASSERT_TRUE(values) << values.status().message();
    reference::store_results(*values, buffers);
    ASSERT_TRUE(matches_reference(program, io_dtype(program))) << seed;
  }
}

TEST(Sdpa, RandomProgramsEvaluate) { expect_programs_evaluate(random_sdpa); }
TEST(SdpaBackward, RandomProgramsEvaluate) { expect_programs_evaluate(random_sdpa_backward); }

}  // namespace
}  // namespace heddle::testing
