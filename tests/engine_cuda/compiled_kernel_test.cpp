// A kernel is compiled once, whoever asks: sizes, threads, processes, and what befalls them.
#include "engine/cuda/compiled_kernel.h"

#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <thread>

#include "engine/cuda/compiler.h"
#include "engine/cuda/engine.h"
#include "engine/cuda/kernel_cache.h"
#include "engine_cuda/fake_machine.h"
#include "kernels/cases.h"

namespace heddle::engine::cuda {
namespace {

namespace fs = std::filesystem;
using CompiledKernel = FakeMachine;

TEST_F(CompiledKernel, SizesAndStridesShareAKernel) {
  for (int64_t length : {600, 601, 1000}) {
    problem::AttentionProblem problem =
        forward_of({.qk_dim = 72, .v_dim = 40, .features = {Feature::sink}, .length = length});
    problem.sizes.layouts[0].strides[2] += 8 * length;
    problem.sizes.scale = 1.0 / static_cast<double>(length);
    ASSERT_TRUE(cuda_engine().plan(problem).is_ok());
  }
  EXPECT_EQ(compilations(), 1);
}

TEST_F(CompiledKernel, ThreadsCompileAKernelOnce) {
  setenv("FAKE_NVRTC_SLOW", "1", 1);
  {
    std::vector<std::jthread> threads;
    for (int n = 0; n < 8; ++n)
      threads.emplace_back([&] {
        EXPECT_TRUE(compiled_kernel({"k", source()}, "sm_90a").is_ok());
      });
  }
  EXPECT_EQ(compilations(), 1);
}

bool ended_well(pid_t child) {
  int status = -1;
  return waitpid(child, &status, 0) == child && status == 0;
}

pid_t compile_in_child(const std::string& source) {
  const pid_t child = fork();
  if (child == 0) _exit(compiled_kernel({"k", source}, "sm_90a").is_ok() ? 0 : 1);
  return child;
}

TEST_F(CompiledKernel, ProcessesCompileAKernelOnce) {
  setenv("FAKE_NVRTC_SLOW", "1", 1);
  std::vector<pid_t> children;
  for (int n = 0; n < 8; ++n) children.push_back(compile_in_child(source()));
  for (const pid_t child : children) EXPECT_TRUE(ended_well(child));
  EXPECT_EQ(compilations(), 1);
  EXPECT_EQ(KernelCache(root_ / "cache").list().size(), 1u);
}

TEST_F(CompiledKernel, AProcessKilledAtCompilingHoldsNobodyUp) {
  setenv("FAKE_NVRTC_SLOW", "1", 1);
  const pid_t child = compile_in_child(source());
  while (compilations() == 0) usleep(1000);
  ASSERT_EQ(kill(child, SIGKILL), 0);
  ASSERT_EQ(waitpid(child, nullptr, 0), child);
  EXPECT_TRUE(compiled_kernel({"k", source()}, "sm_90a").is_ok());
  EXPECT_EQ(compilations(), 2);
}

TEST_F(CompiledKernel, AProcessForkedAtCompilingHoldsNobodyUp) {
  setenv("FAKE_NVRTC_SLOW", "1", 1);
  const auto lock_of = [this](const std::string& text) {
    return kernel_key(source(text), "sm_90a", *compiler_version())
        .digest()
        .substr(kDigestDigits - 2);
  };
  int same_lock = 1;
  while (lock_of(std::to_string(same_lock)) != lock_of("")) ++same_lock;
  std::jthread compiling([&] { (void)compiled_kernel({"k", source()}, "sm_90a"); });
  while (compilations() == 0) usleep(1000);
  const pid_t idle = fork();
  if (idle == 0) {
    pause();
    _exit(0);
  }
  compiling.join();
  const pid_t other = fork();
  if (other == 0) {
    alarm(20);
    const std::string text = source(std::to_string(same_lock));
    _exit(compiled_kernel({"k", text}, "sm_90a").is_ok() ? 0 : 1);
  }
  EXPECT_TRUE(ended_well(other));
  ASSERT_EQ(kill(idle, SIGKILL), 0);
  ASSERT_EQ(waitpid(idle, nullptr, 0), idle);
}

TEST_F(CompiledKernel, ACacheThatCannotBeWrittenIsNoError) {
  for (const char* root : {"/dev/null/cache", ""}) {
    setenv("HEDDLE_CACHE_DIR", root, 1);
    EXPECT_TRUE(compiled_kernel({"k", source(root)}, "sm_90a").is_ok());
    EXPECT_TRUE(compiled_kernel({"k", source(root)}, "sm_90a").is_ok());
  }
  EXPECT_EQ(compilations(), 2);
}

TEST_F(CompiledKernel, ADamagedEntryIsCompiledAgain) {
  ASSERT_TRUE(ended_well(compile_in_child(source())));
  const KernelCache cache(root_ / "cache");
  ASSERT_EQ(cache.list().size(), 1u);
  fs::resize_file(cache.root() / cache.list()[0].digest / "kernel.cubin", 3);
  EXPECT_TRUE(compiled_kernel({"k", source()}, "sm_90a").is_ok());
  EXPECT_EQ(compilations(), 2);
  EXPECT_TRUE(cache.find(kernel_key(source(), "sm_90a", *compiler_version())).is_ok());
}

TEST_F(CompiledKernel, AFailedCompilationSaysWhyAndIsTriedAgain) {
  setenv("FAKE_NVRTC_FAILS", "1", 1);
  const Status status = compiled_kernel({"k", source()}, "sm_90a").status();
  EXPECT_EQ(status.code(), Code::nvrtc_compilation_failed);
  EXPECT_EQ(status.message(),
            "kernel k did not compile for sm_90a (NVRTC_ERROR_COMPILATION):\n"
            "kernel.cu(1): error: not today");
  unsetenv("FAKE_NVRTC_FAILS");
  EXPECT_TRUE(compiled_kernel({"k", source()}, "sm_90a").is_ok());
}

}  // namespace
}  // namespace heddle::engine::cuda
