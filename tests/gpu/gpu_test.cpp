#include "gpu/gpu_test.h"

#include <cstdio>
#include <cstdlib>
#include <future>
#include <map>
#include <thread>
#include <vector>

#include "engine/cuda/engine.h"
#include "support/attention_programs.h"
#include "support/compare.h"

namespace heddle::testing {
namespace {

/// "sdpa: cuda, attention forward, Hopper kernel, ..." is of the "attention forward, Hopper
/// kernel".
std::string kind_of(const std::string& description) {
  const size_t begin = description.find("cuda, ");
  if (begin == std::string::npos) return description;
  const std::string plan = description.substr(begin + 6);
  const size_t comma = plan.find(',');
  return plan.substr(0, plan.find_first_of(",\n", comma + 1));
}

}  // namespace

int64_t gpu_problem_count() {
  const char* text = std::getenv("HEDDLE_GPU_PROBLEMS");
  return text ? std::atoll(text) : 300;
}

OnGpu::Built OnGpu::build(Program program) {
  const DataType io = io_dtype(program);
  const engine::Engine* engines[] = {&engine::cuda::cuda_engine()};
  auto executable = api::Executable::build(program.graph, engines);
  return {std::move(program), io, std::move(executable)};
}

void OnGpu::run(const Draw& draw) {
  const int64_t count = gpu_problem_count();
  const int64_t batch = std::max<int64_t>(1, std::thread::hardware_concurrency());
  std::map<std::string, int64_t> refusals, plans;
  int64_t served = 0;
  for (int64_t first = 0; first < count; first += batch) {
    std::vector<std::future<Built>> builds;
    for (int64_t seed = first; seed < std::min(first + batch, count); ++seed) {
      builds.push_back(std::async(std::launch::async, [&draw, seed] {
        Random random(static_cast<uint64_t>(seed));
        return build(draw(random));
      }));
    }
    for (size_t n = 0; n < builds.size(); ++n) {
      SCOPED_TRACE(fmt::format("seed {}", first + static_cast<int64_t>(n)));
      Built built = builds[n].get();
      if (!built.executable.is_ok()) {
        ++refusals[built.executable.status().message()];
        continue;
      }
      ++served;
      ++plans[kind_of((*built.executable)->description())];
      execute(built);
    }
  }
  std::printf("%s: %lld served\n", context_.device_name().c_str(), static_cast<long long>(served));
  for (const auto& [kind, times] : plans) {
    std::printf("  %lld by %s\n", static_cast<long long>(times), kind.c_str());
  }
  for (const auto& [sentence, times] : refusals) {
    std::printf("  %lld refused: %s\n", static_cast<long long>(times), sentence.c_str());
  }
  EXPECT_GT(served, count / 2);
}

void OnGpu::execute(Built& built) {
  const api::Executable& executable = **built.executable;
  DeviceProgram device(built.program);
  ASSERT_TRUE(device.status().is_ok()) << device.status().message();
  const DeviceBlock workspace(executable.workspace_bytes());
  const std::vector<api::Binding> bindings = device.bindings(executable);
  const Status executed = executable.execute(bindings, workspace.pointer(), nullptr);
  ASSERT_TRUE(executed.is_ok()) << executed.message();
  const Status finished = context_.synchronise();
  ASSERT_TRUE(finished.is_ok()) << finished.message();
  ASSERT_TRUE(device.copy_back().is_ok());
  EXPECT_TRUE(matches_reference(built.program, built.io)) << executable.description();
}

}  // namespace heddle::testing
