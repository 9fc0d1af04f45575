// What executions promise beside their results: they can be captured into a CUDA graph, and
// repeat their bits where that is asked for.
#include <cstring>

#include "gpu/attention_options.h"
#include "gpu/device_graph.h"
#include "gpu/gpu_test.h"
#include "support/compare.h"

namespace heddle::testing {
namespace {

// A program's tensors on the device, and what executes them.
class OnDevice {
 public:
  OnDevice(Program& program, const api::Executable& executable)
      : executable_(executable), device_(program), workspace_(executable.workspace_bytes()) {
    if (device_.status().is_ok()) bindings_ = device_.bindings(executable);
  }

  const Status& status() const { return device_.status(); }
  Status queue(void* stream = nullptr) const {
    return executable_.execute(bindings_, workspace_.pointer(), stream);
  }
  Status copy_back() { return device_.copy_back(); }

 private:
  const api::Executable& executable_;
  DeviceProgram device_;
  const DeviceBlock workspace_;
  std::vector<api::Binding> bindings_;
};

class ExecutionOnGpu : public OnGpu {};

// Recorded once, replayed twice: an execution neither allocates nor synchronises, and leaves its
// workspace so that the next finds nothing in it that it minds.
TEST_F(ExecutionOnGpu, IsCapturedIntoAGraph) {
  std::vector<Built> problems = build_all(
      [](Random& random) {
        AttentionOptions options = aligned_backward_options();
        options.rope = random.chance(0.5) ? 1 : 0;
        return random.chance(0.5) ? random_sdpa(random, options)
                                  : random_sdpa_backward(random, options);
      },
      0, 16);
  for (Built& built : problems) {
    ASSERT_TRUE(built.executable.is_ok()) << built.executable.status().message();
    const api::Executable& executable = **built.executable;
    SCOPED_TRACE(executable.description());
    OnDevice device(built.program, executable);
    ASSERT_TRUE(device.status().is_ok()) << device.status().message();
    const DeviceGraph graph([&device](void* stream) { return device.queue(stream); });
    ASSERT_TRUE(graph.status().is_ok()) << graph.status().message();
    for (int run = 0; run < 2; ++run) {
      const Status replayed = graph.replay();
      ASSERT_TRUE(replayed.is_ok()) << replayed.message();
    }
    ASSERT_TRUE(device.copy_back().is_ok());
    EXPECT_TRUE(matches_reference(built.program, built.io));
  }
}

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
