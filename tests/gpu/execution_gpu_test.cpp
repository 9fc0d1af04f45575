// What executions promise beside their results: deterministic backwards repeat their bits, and the
// host has little to do beside the driver's launches.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>

#include "engine/cuda/attention_sm80.h"
#include "engine/cuda/driver.h"
#include "engine/cuda/kernel.h"
#include "engine/cuda/kernel_cache.h"
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

// Microseconds of the host that one call takes, the device's left out: as few are queued as its
// queue holds, and the least of some rounds counts.
double host_microseconds(const DeviceContext& context, const std::function<Status()>& call) {
  constexpr int kQueued = 50, kRounds = 40;
  double least = 1e9;
  for (int round = 0; round < kRounds; ++round) {
    EXPECT_TRUE(context.synchronise().is_ok());
    const auto begin = std::chrono::steady_clock::now();
    for (int n = 0; n < kQueued; ++n) EXPECT_TRUE(call().is_ok());
    const std::chrono::duration<double, std::micro> taken =
        std::chrono::steady_clock::now() - begin;
    least = std::min(least, taken.count() / kQueued);
  }
  return least;
}

// A kernel that does nothing with as many bytes of arguments as the backward has.
Result<std::shared_ptr<const engine::cuda::Kernel>> idle_kernel() {
  using namespace engine::cuda;
  constexpr const char* kSource =
      "struct Arguments { char bytes[2900]; };\n"
      "extern \"C\" __global__ void idle(const __grid_constant__ Arguments arguments) {}\n";
  HEDDLE_ASSIGN(const Device device, current_device(*driver()));
  HEDDLE_ASSIGN(const std::shared_ptr<const Cubin> cubin,
                compiled_kernel(kSource, "idle", architecture_of(device)));
  return Kernel::load(*driver(), device, *cubin, "idle", 0);
}

// Measured, not asserted: beside its launches a call should cost the host at most 5 us.
TEST_F(ExecutionOnGpu, HostTimeOfACall) {
  AttentionOptions options = aligned_backward_options();
  options.dropout = options.bias = options.value_heads_differ = options.padding = 0;
  options.sink = options.bounds = options.score_mod = 0;
  const auto idle = idle_kernel();
  ASSERT_TRUE(idle.is_ok()) << idle.status().message();
  char bytes[2900] = {};
  void* arguments[] = {bytes};
  const double launch =
      host_microseconds(context_, [&] { return (*idle)->launch({}, nullptr, arguments); });
  const std::pair<int, Draw> draws[] = {
      {1, [&options](Random& random) { return random_sdpa(random, options); }},
      {3, [&options](Random& random) { return random_sdpa_backward(random, options); }}};
  for (const auto& [launches, draw] : draws) {
    std::vector<Built> problems = build_all(draw, 1, 2);
    ASSERT_TRUE(problems[0].executable.is_ok()) << problems[0].executable.status().message();
    const api::Executable& executable = **problems[0].executable;
    OnDevice device(problems[0].program, executable);
    ASSERT_TRUE(device.status().is_ok()) << device.status().message();
    const double all = host_microseconds(context_, [&] { return device.queue(); });
    std::printf("%.2f us of the host, %d launches of %.2f: %s\n", all, launches, launch,
                executable.description().c_str());
  }
}

}  // namespace
}  // namespace heddle::testing
