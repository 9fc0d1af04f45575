// What executions of deterministic backwards promise beside their results: they repeat their bits.
#include <cstring>

#include "gpu/attention_options.h"
#include "gpu/gpu_test.h"

namespace heddle::testing {
namespace {

class ExecutionOnGpu : public OnGpu {};

TEST_F(ExecutionOnGpu, OfADeterministicBackwardRepeatsItsBits) {
  AttentionOptions options = aligned_backward_options();
  options.deterministic = 1;
  options.max_batch = 2;
  std::vector<Built> problems = build_all(
      [&options](Random& random) { return random_sdpa_backward(random, options); }, 0, 12);
  for (Built& built : problems) {
    ASSERT_TRUE(built.executable.is_ok()) << built.executable.status().message();
    const api::Executable& executable = **built.executable;
    OnDevice device(built.program, executable);
    ASSERT_TRUE(device.status().is_ok()) << device.status().message();
    std::unordered_map<int64_t, Block> first;
    for (int run = 0; run < 20; ++run) {
      ASSERT_TRUE(device.queue().is_ok());
      ASSERT_TRUE(device.copy_back().is_ok());
      if (run == 0) first = built.program.memory;
      for (const api::Port& port : executable.outputs()) {
        const Block &a = first.at(port.uid), &b = built.program.memory.at(port.uid);
        ASSERT_EQ(std::memcmp(a.data(), b.data(), static_cast<size_t>(a.size())), 0)
            << "run " << run << ", uid " << port.uid << ", " << executable.description();
      }
    }
  }
}

}  // namespace
}  // namespace heddle::testing
