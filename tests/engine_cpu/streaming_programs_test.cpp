// RMSNorm and RoPE standing alone, in every instruction set, against their definitions.
#include "support/streaming_programs.h"

#include <gtest/gtest.h>

#include "engine/cpu/engine.h"
#include "engine_cpu/levels.h"
#include "support/attention_programs.h"
#include "support/compare.h"
#include "support/run.h"

namespace heddle::testing {
namespace {

using Draw = Program (*)(Random&);

class StreamingPrograms : public ::testing::TestWithParam<std::pair<const char*, Draw>> {};

TEST_P(StreamingPrograms, MatchTheDefinition) {
  for (const engine::cpu::Isa level : available_levels()) {
    const ForcedLevel forced(level);
    for (uint64_t seed = 0; seed < 200; ++seed) {
      Random random(seed + 1000 * static_cast<uint64_t>(level));
      Program program = GetParam().second(random);
      const Status status = run(program, engine::cpu_engine());
      ASSERT_TRUE(status.is_ok()) << status.message() << ", seed " << random.seed();
      ASSERT_TRUE(matches_reference(program, io_dtype(program))) << engine::cpu::name(level);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Ops, StreamingPrograms,
                         ::testing::Values(std::pair("rms_norm", Draw(random_rms_norm)),
                                           std::pair("rms_norm_backward",
                                                     Draw(random_rms_norm_backward)),
                                           std::pair("rope", Draw(random_rope))),
                         [](const auto& info) { return info.param.first; });

}  // namespace
}  // namespace heddle::testing
