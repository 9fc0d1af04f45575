// What executions promise beside their results: decoding and deterministic backwards repeat their
// bits, plans may go at any time.
#include <cstdio>
#include <cstring>

#include "gpu/attention_options.h"
#include "gpu/device_graph.h"
#include "gpu/gpu_test.h"

namespace heddle::testing {
namespace {

class ExecutionOnGpu : public OnGpu {
 protected:
  void expect_same_bits(const Draw& draw, int64_t problems = 8);
  void expect_same_bits_backward(AttentionOptions options, int64_t problems = 8) {
    options.deterministic = 1;
    expect_same_bits([&](Random& random) { return random_sdpa_backward(random, options); },
                     problems);
  }
};

// Each run into poisoned memory of its own.
void ExecutionOnGpu::expect_same_bits(const Draw& draw, int64_t problems) {
  constexpr int kRuns = 12;
  int64_t served = 0;
  for (Built& built : build_all(draw, 0, problems)) {
    if (!built.executable.is_ok()) continue;
    ++served;
    const api::Executable& executable = **built.executable;
    Program first = built.program;
    for (int run = 0; run < kRuns; ++run) {
      Program again = built.program;
      OnDevice device(again, executable);
      ASSERT_TRUE(device.status().is_ok()) << device.status().message();
      ASSERT_TRUE(device.queue().is_ok());
      ASSERT_TRUE(context_.synchronise().is_ok() && device.copy_back().is_ok());
      if (run == 0) first = again;
      for (const auto& [uid, block] : first.memory) {
        const size_t bytes = static_cast<size_t>(block.size());
        ASSERT_EQ(std::memcmp(block.data(), again.memory.at(uid).data(), bytes), 0)
            << "run " << run << ", uid " << uid << ", " << executable.description();
      }
    }
  }
  EXPECT_GT(served, problems / 2);
}

TEST_F(ExecutionOnGpu, OfADeterministicBackwardRepeatsItsBits) {
  expect_same_bits_backward(gpu_options());
  expect_same_bits_backward(aligned_backward_options());
  expect_same_bits_backward(f32_options());
  expect_same_bits_backward(aligned_f32_backward_options());
}

// Whichever block is the first or the last.
TEST_F(ExecutionOnGpu, OfFewRowsRepeatsItsBits) {
  expect_same_bits([](Random& random) { return random_sdpa(random, decode_options()); }, 16);
}

// What has sums of its own (dBias, dSink), or its own way to the rows.
class DeterminismOnGpu : public ExecutionOnGpu,
                         public ::testing::WithParamInterface<AttentionFeature> {};

TEST_P(DeterminismOnGpu, OfABackwardRepeatsItsBits) {
  AttentionOptions aligned = aligned_backward_options();
  aligned.key_step = 16;
  for (AttentionOptions options : {gpu_options(), aligned}) {
    GetParam().switch_on(options);
    expect_same_bits_backward(options, 4);
  }
}

// A plan for each execution, gone before it can have begun. Memory is printed, not asserted: other
// processes share the device.
TEST_F(ExecutionOnGpu, PlansComeAndGoByTheThousand) {
  constexpr int kRounds = 3, kPlans = 1000, kBetweenWaits = 100;
  Random random(0);
  Built built = build(random_sdpa_backward(random, aligned_backward_options()));
  ASSERT_TRUE(built.executable.is_ok()) << built.executable.status().message();
  DeviceProgram device(built.program);
  ASSERT_TRUE(device.status().is_ok()) << device.status().message();
  const DeviceBlock workspace((*built.executable)->workspace_bytes());
  const std::vector<api::Binding> bindings = device.bindings(**built.executable);
  const DeviceStream stream;
  ASSERT_TRUE(stream.status().is_ok()) << stream.status().message();
  for (int round = 0; round < kRounds; ++round) {
    const int64_t free_bytes = context_.free_bytes();
    for (int n = 0; n < kPlans; ++n) {
      const Built once = build(built.program);
      ASSERT_TRUE(once.executable.is_ok()) << once.executable.status().message();
      ASSERT_TRUE(
          (*once.executable)->execute(bindings, workspace.pointer(), stream.handle()).is_ok());
      if (n % kBetweenWaits == 0) {
        ASSERT_TRUE(stream.synchronise().is_ok());
      }
    }
    ASSERT_TRUE(stream.synchronise().is_ok());
    std::printf("%d plans came and went: %.1f MB more of the device's memory in use\n", kPlans,
                static_cast<double>(free_bytes - context_.free_bytes()) / (1 << 20));
  }
  ASSERT_TRUE(device.copy_back().is_ok());
  EXPECT_TRUE(matches_definition(built));
}

INSTANTIATE_TEST_SUITE_P(Gpu, DeterminismOnGpu, ::testing::ValuesIn(kAttentionFeatures),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace heddle::testing
