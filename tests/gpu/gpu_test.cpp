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

std::vector<OnGpu::Built> OnGpu::build_all(const Numbered& draw, int64_t first, int64_t end) {
  std::vector<std::future<Built>> builds;
  for (int64_t seed = first; seed < end; ++seed) {
    builds.push_back(std::async(std::launch::async, [&draw, seed] {
      Random random(static_cast<uint64_t>(seed));
      return build(draw(random, seed));
    }));
  }
  std::vector<Built> all;
  for (auto& one : builds) all.push_back(one.get());
  return all;
}

std::vector<OnGpu::Built> OnGpu::build_all(const Draw& draw, int64_t first, int64_t end) {
  return build_all([&draw](Random& random, int64_t) { return draw(random); }, first, end);
}

namespace {
// Where a row sees one key, dS is the difference of two equal sums, dO V and dO O: naive f32 takes
// both in the same order and finds 0, a tensor core and a warp do not. Of wide heads under a large
// scale 140 steps were left in one element.
Tolerance tolerance_of(DataType io) {
  Tolerance tolerance;
  if (io == DataType::f32) tolerance.cancellation_steps *= 2;
  return tolerance;
}
}  // namespace

void OnGpu::run(const Draw& draw) {
  run([&draw](Random& random, int64_t) { return draw(random); }, gpu_problem_count());
}

void OnGpu::run(const Numbered& draw, int64_t count) {
  const int64_t batch = std::clamp<int64_t>(std::thread::hardware_concurrency(), 1, 32);
  std::map<std::string, int64_t> refusals, plans;
  int64_t served = 0;
  std::vector<Built> built;
  std::vector<std::future<::testing::AssertionResult>> compared;
  int64_t compared_from = 0;
  const auto report = [&] {
    for (size_t n = 0; n < compared.size(); ++n) {
      if (!compared[n].valid()) continue;
      EXPECT_TRUE(compared[n].get()) << (*built[n].executable)->description() << ", seed "
                                     << compared_from + static_cast<int64_t>(n);
    }
    compared.clear();
  };
  for (int64_t first = 0; first < count; first += batch) {
    std::vector<Built> next = build_all(draw, first, std::min(first + batch, count));
    report();
    built = std::move(next);
    compared_from = first;
    for (Built& one : built) {
      compared.emplace_back();
      if (!one.executable.is_ok()) {
        ++refusals[one.executable.status().message()];
        continue;
      }
      ++served;
      ++plans[kind_of((*one.executable)->description())];
      execute(one);
      compared.back() = std::async(std::launch::async, [&one] {
        return matches_reference(one.program, one.io, tolerance_of(one.io));
      });
    }
  }
  report();
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
}

}  // namespace heddle::testing
