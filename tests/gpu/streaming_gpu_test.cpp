// RMSNorm and RoPE standing alone on the CUDA engine against the f64 definition: seeded random
// problems over the whole contract, each with poisoned outputs and gaps.
#include <cstring>

#include "gpu/gpu_test.h"
#include "support/streaming_programs.h"

namespace heddle::testing {
namespace {

class StreamingOnGpu : public OnGpu {};

// Half of the rows are multiples of 8 elements, some wider than registers hold.
constexpr NormOptions kNorms{.aligned = 0.5, .max_aligned_columns = 24000};

TEST_F(StreamingOnGpu, RmsNormMatchesTheDefinition) {
  run([](Random& random) { return random_rms_norm(random, kNorms); });
}

TEST_F(StreamingOnGpu, RmsNormBackwardMatchesTheDefinition) {
  run([](Random& random) { return random_rms_norm_backward(random, kNorms); });
}

TEST_F(StreamingOnGpu, RopeMatchesTheDefinition) { run(random_rope); }

// Every output of two runs, whose workspaces began with different contents.
TEST_F(StreamingOnGpu, GradientsHaveTheSameBitsEachTime) {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    Random random(seed);
    Built built = build(random_rms_norm_backward(random, kNorms));
    ASSERT_TRUE(built.executable.is_ok()) << built.executable.status().message();
    Program again = built.program;
    execute(built);
    const api::Executable& executable = **built.executable;
    DeviceProgram device(again);
    const DeviceBlock workspace(executable.workspace_bytes());
    for (int turn = 0; turn < 2; ++turn) {
      const Status executed =
          executable.execute(device.bindings(executable), workspace.pointer(), nullptr);
      ASSERT_TRUE(executed.is_ok()) << executed.message();
    }
    ASSERT_TRUE(context_.synchronise().is_ok());
    ASSERT_TRUE(device.copy_back().is_ok());
    for (const auto& [uid, block] : built.program.memory) {
      EXPECT_EQ(
          std::memcmp(block.data(), again.memory.at(uid).data(), static_cast<size_t>(block.size())),
          0)
          << "uid " << uid << ", seed " << seed;
    }
  }
}

}  // namespace
}  // namespace heddle::testing
