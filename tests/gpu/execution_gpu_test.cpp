// What executions promise beside their results: deterministic backwards repeat their bits.
#include <cstring>

#include "gpu/attention_options.h"
#include "gpu/gpu_test.h"

namespace heddle::testing {
namespace {

class ExecutionOnGpu : public OnGpu {
 protected:
  void expect_same_bits(AttentionOptions options, int64_t problems = 8);
};

// Each run into poisoned memory of its own.
void ExecutionOnGpu::expect_same_bits(AttentionOptions options, int64_t problems) {
  constexpr int kRuns = 12;
  options.deterministic = 1;
  int64_t served = 0;
  for (Built& built :
       build_all([&options](Random& random) { return random_sdpa_backward(random, options); }, 0,
                 problems)) {
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
  expect_same_bits(gpu_options());
  expect_same_bits(aligned_backward_options());
  expect_same_bits(f32_options());
  expect_same_bits(aligned_f32_backward_options());
}

// What has sums of its own (dBias, dSink), or its own way to the rows.
class DeterminismOnGpu : public ExecutionOnGpu,
                         public ::testing::WithParamInterface<AttentionFeature> {};

TEST_P(DeterminismOnGpu, OfABackwardRepeatsItsBits) {
  AttentionOptions aligned = aligned_backward_options();
  aligned.key_step = 16;
  for (AttentionOptions options : {gpu_options(), aligned}) {
    GetParam().switch_on(options);
    expect_same_bits(options, 4);
  }
}

INSTANTIATE_TEST_SUITE_P(Gpu, DeterminismOnGpu, ::testing::ValuesIn(kAttentionFeatures),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace heddle::testing
