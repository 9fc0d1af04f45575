// The CUDA engine against the f64 definition: seeded random problems over the whole contract, each
// with poisoned outputs, gaps and tails. HEDDLE_GPU_PROBLEMS sets how many of each kind (300).
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <map>

#include "api/executable.h"
#include "engine/cuda/engine.h"
#include "gpu/device_memory.h"
#include "support/attention_programs.h"
#include "support/compare.h"

namespace heddle::testing {
namespace {

int64_t problem_count() {
  const char* text = std::getenv("HEDDLE_GPU_PROBLEMS");
  return text ? std::atoll(text) : 300;
}

// Problems that fit tensor-core kernels: both 16-bit types, lengths around and past the tile sizes.
AttentionOptions gpu_options() {
  AttentionOptions options;
  options.dtypes = {DataType::bf16, DataType::f16};
  options.max_length = 200;
  options.max_head_dim = 128;
  return options;
}

class AttentionOnGpu : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_TRUE(context_.status().is_ok()) << context_.status().message(); }

  // Runs `draw` for every seed; refusals are counted by their sentence and printed, and most of the
  // problems must have been served.
  template <class Draw>
  void run(Draw draw) {
    const engine::Engine* engines[] = {&engine::cuda::cuda_engine()};
    std::map<std::string, int64_t> refusals;
    int64_t served = 0;
    for (int64_t seed = 0; seed < problem_count(); ++seed) {
      Random random(static_cast<uint64_t>(seed));
      Program program = draw(random);
      SCOPED_TRACE(fmt::format("seed {}", seed));
      const DataType io = io_dtype(program);
      const Result<std::shared_ptr<const api::Executable>> built =
          api::Executable::build(program.graph, engines);
      if (!built.is_ok()) {
        ++refusals[built.status().message()];
        continue;
      }
      ++served;
      DeviceProgram device(program);
      ASSERT_TRUE(device.status().is_ok()) << device.status().message();
      const DeviceBlock workspace((*built)->workspace_bytes());
      std::vector<api::Binding> bindings;
      for (const auto* ports : {&(*built)->inputs(), &(*built)->outputs()}) {
        for (const api::Port& port : *ports)
          bindings.push_back({port.uid, device.pointer(port.uid)});
      }
      const Status executed = (*built)->execute(bindings, workspace.pointer(), nullptr);
      ASSERT_TRUE(executed.is_ok()) << executed.message();
      const Status finished = context_.synchronise();
      ASSERT_TRUE(finished.is_ok()) << finished.message();
      ASSERT_TRUE(device.copy_back().is_ok());
      EXPECT_TRUE(matches_reference(program, io));
    }
    std::printf("%s: %lld served\n", context_.device_name().c_str(),
                static_cast<long long>(served));
    for (const auto& [sentence, count] : refusals)
      std::printf("  %lld refused: %s\n", static_cast<long long>(count), sentence.c_str());
    EXPECT_GT(served, problem_count() / 2);
  }

  DeviceContext context_;
};

TEST_F(AttentionOnGpu, ForwardMatchesTheDefinition) {
  run([](Random& random) { return random_sdpa(random, gpu_options()); });
}

TEST_F(AttentionOnGpu, BackwardMatchesTheDefinition) {
  run([](Random& random) { return random_sdpa_backward(random, gpu_options()); });
}

}  // namespace
}  // namespace heddle::testing
