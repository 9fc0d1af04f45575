// The CUDA engine against the f64 definition: seeded random problems over the whole contract, each
// with poisoned outputs, gaps and tails. HEDDLE_GPU_PROBLEMS sets how many of each kind (300).
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <future>
#include <map>
#include <thread>
#include <vector>

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

  struct Built {
    Program program;
    DataType io;
    Result<std::shared_ptr<const api::Executable>> executable;
  };

  // Runs `draw` for every seed; refusals are counted by their sentence and printed, and most of the
  // problems must have been served. Each problem compiles kernels of its own, so plans are made by
  // all cores, a batch ahead of the device.
  template <class Draw>
  void run(Draw draw) {
    const auto build = [&draw](int64_t seed) {
      Random random(static_cast<uint64_t>(seed));
      Program program = draw(random);
      const DataType io = io_dtype(program);
      const engine::Engine* engines[] = {&engine::cuda::cuda_engine()};
      auto executable = api::Executable::build(program.graph, engines);
      return Built{std::move(program), io, std::move(executable)};
    };
    const int64_t batch = std::max<int64_t>(1, std::thread::hardware_concurrency());
    std::map<std::string, int64_t> refusals;
    std::map<std::string, int64_t> plans;
    int64_t served = 0;
    for (int64_t first = 0; first < problem_count(); first += batch) {
      std::vector<std::future<Built>> builds;
      for (int64_t seed = first; seed < std::min(first + batch, problem_count()); ++seed) {
        builds.push_back(std::async(std::launch::async, build, seed));
      }
      for (size_t n = 0; n < builds.size(); ++n) {
        SCOPED_TRACE(fmt::format("seed {}", first + static_cast<int64_t>(n)));
        Built built = builds[n].get();
        if (!built.executable.is_ok()) {
          ++refusals[built.executable.status().message()];
          continue;
        }
        ++served;
        const std::string& plan = (*built.executable)->description();
        ++plans[plan.find("Hopper") != std::string::npos ? "Hopper kernel" : "general kernel"];
        execute(built);
      }
    }
    std::printf("%s: %lld served\n", context_.device_name().c_str(),
                static_cast<long long>(served));
    for (const auto& [kernel, count] : plans) {
      std::printf("  %lld by the %s\n", static_cast<long long>(count), kernel.c_str());
    }
    for (const auto& [sentence, count] : refusals) {
      std::printf("  %lld refused: %s\n", static_cast<long long>(count), sentence.c_str());
    }
    EXPECT_GT(served, problem_count() / 2);
  }

  void execute(Built& built) {
    const api::Executable& executable = **built.executable;
    DeviceProgram device(built.program);
    ASSERT_TRUE(device.status().is_ok()) << device.status().message();
    const DeviceBlock workspace(executable.workspace_bytes());
    std::vector<api::Binding> bindings;
    for (const auto* ports : {&executable.inputs(), &executable.outputs()}) {
      for (const api::Port& port : *ports) bindings.push_back({port.uid, device.pointer(port.uid)});
    }
    const Status executed = executable.execute(bindings, workspace.pointer(), nullptr);
    ASSERT_TRUE(executed.is_ok()) << executed.message();
    const Status finished = context_.synchronise();
    ASSERT_TRUE(finished.is_ok()) << finished.message();
    ASSERT_TRUE(device.copy_back().is_ok());
    EXPECT_TRUE(matches_reference(built.program, built.io)) << executable.description();
  }

  DeviceContext context_;
};

TEST_F(AttentionOnGpu, ForwardMatchesTheDefinition) {
  run([](Random& random) { return random_sdpa(random, gpu_options()); });
}

// Dense tensors, whose rows the copy engine can fetch: on Hopper these run the kernel made for it.
TEST_F(AttentionOnGpu, ForwardOfAlignedTensorsMatchesTheDefinition) {
  AttentionOptions options = gpu_options();
  options.odd_strides = 0;
  options.max_length = 400;
  options.max_head_dim = 256;
  options.paged = options.block_mask = options.rng_dump = 0;
  run([&options](Random& random) { return random_sdpa(random, options); });
}

TEST_F(AttentionOnGpu, BackwardMatchesTheDefinition) {
  run([](Random& random) { return random_sdpa_backward(random, gpu_options()); });
}

}  // namespace
}  // namespace heddle::testing
