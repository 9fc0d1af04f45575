// Norms, RoPE and pointwise ops standing alone, in every instruction set, against their
// definitions.
#include "support/streaming_programs.h"

#include <gtest/gtest.h>

#include "engine/cpu/engine.h"
#include "engine_cpu/levels.h"
#include "graph/validate.h"
#include "support/attention_programs.h"
#include "support/channel_norm_programs.h"
#include "support/compare.h"
#include "support/part.h"
#include "support/pointwise_programs.h"
#include "support/run.h"

namespace heddle::testing {
namespace {

using Draw = Program (*)(Random&);

constexpr NormOptions kSums{.aligned = 0.3, .max_aligned_columns = 512, .residual = 1};

class StreamingPrograms : public ::testing::TestWithParam<std::pair<const char*, Draw>> {};

TEST_P(StreamingPrograms, MatchTheDefinition) {
  for (uint64_t seed = 0; seed < 400; ++seed) {
    if (!part().has(seed)) continue;
    SCOPED_TRACE("seed " + std::to_string(seed));
    Random random(seed);
    Program program = GetParam().second(random);
    ASSERT_TRUE(graph::validate(program.graph).is_ok());
    const Definition definition(program, io_dtype(program));
    for (const engine::cpu::Isa level : available_levels()) {
      const ForcedLevel forced(level);
      Program results = program;
      const Status status = run(results, engine::cpu_engine());
      ASSERT_TRUE(status.is_ok()) << status.message();
      ASSERT_TRUE(definition.is_met_by(results)) << engine::cpu::name(level);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Ops, StreamingPrograms,
    ::testing::Values(
        std::pair("rms_norm", Draw(random_rms_norm)),
        std::pair("rms_norm_backward", Draw(random_rms_norm_backward)),
        std::pair("layer_norm", Draw(random_layer_norm)),
        std::pair("layer_norm_backward", Draw(random_layer_norm_backward)),
        std::pair("rms_norm_of_a_sum", Draw([](Random& r) { return random_rms_norm(r, kSums); })),
        std::pair("layer_norm_of_a_sum",
                  Draw([](Random& r) { return random_layer_norm(r, kSums); })),
        std::pair("instance_norm", Draw(random_instance_norm)),
        std::pair("instance_norm_backward", Draw(random_instance_norm_backward)),
        std::pair("batch_norm", Draw(random_batch_norm)),
        std::pair("batch_norm_backward", Draw(random_batch_norm_backward)),
        std::pair("rms_norm_of_no_numbers",
                  Draw([](Random& r) { return with_no_numbers(r, random_rms_norm(r, kSums)); })),
        std::pair("layer_norm_of_no_numbers",
                  Draw([](Random& r) { return with_no_numbers(r, random_layer_norm(r, kSums)); })),
        std::pair("batch_norm_of_no_numbers",
                  Draw([](Random& r) { return with_no_numbers(r, random_batch_norm(r)); })),
        std::pair("rope", Draw(random_rope)), std::pair("pointwise", Draw(random_pointwise)),
        std::pair("pointwise_around_norm", Draw(random_pointwise_around_norm))),
    [](const auto& info) { return info.param.first; });

}  // namespace
}  // namespace heddle::testing
