#include "engine_cuda/fake_machine.h"

#include <dlfcn.h>

#include <cstdlib>

#include "api/count_allocations.h"
#include "engine/cuda/engine.h"

namespace heddle::engine::cuda {

namespace fs = std::filesystem;

testing::FakeCudaCalls& calls() {
  void* library = dlopen("libcuda.so.1", RTLD_NOW);
  return *reinterpret_cast<testing::FakeCudaCalls* (*)()>(dlsym(library, "fake_cuda_calls"))();
}

void FakeMachine::SetUp() {
  ::testing::FLAGS_gtest_death_test_style = "threadsafe";
  std::string pattern = (fs::temp_directory_path() / "heddle-execution-XXXXXX").string();
  ASSERT_NE(mkdtemp(pattern.data()), nullptr);
  root_ = pattern;
  setenv("HEDDLE_NVRTC", FAKE_NVRTC, 1);
  setenv("HEDDLE_KERNELS", "", 1);
  setenv("HEDDLE_CACHE_DIR", (root_ / "cache").c_str(), 1);
  setenv("FAKE_NVRTC_LOG", log().c_str(), 1);
}

void FakeMachine::TearDown() {
  for (const char* name :
       {"FAKE_NVRTC_FAILS", "FAKE_NVRTC_SLOW", "FAKE_NVRTC_AT_ONCE", "FAKE_CUDA_CAPABILITY",
        "FAKE_CUDA_CAPTURES", "FAKE_CUDA_CONTEXT", "FAKE_CUDA_DEVICE", "FAKE_CUDA_NO_CONTEXT",
        "FAKE_CUDA_ALLOCATIONS", "FAKE_CUDA_BEHIND", "FAKE_CUDA_NO_POOLS"})
    unsetenv(name);
  fs::remove_all(root_);
}

int64_t FakeMachine::compilations() const {
  std::error_code missing;
  const uintmax_t size = fs::file_size(log(), missing);
  return missing ? 0 : static_cast<int64_t>(size);
}

void expect_executes(const problem::Problem& problem, size_t operands) {
  const Result<std::shared_ptr<const Plan>> plan = cuda_engine().plan(problem);
  ASSERT_TRUE(plan.is_ok()) << plan.status().message();
  const Buffers buffers(operands);
  void* const workspace = const_cast<char*>(buffers.memory.data());
  const int launches = calls().launches;
  const int64_t allocations = testing::allocations();
  const Status status = (*plan)->execute(buffers.pointers, workspace, nullptr);
  EXPECT_EQ(testing::allocations(), allocations) << (*plan)->description();
  EXPECT_TRUE(status.is_ok()) << status.message();
  EXPECT_GT(calls().launches, launches) << (*plan)->description();
}

}  // namespace heddle::engine::cuda
