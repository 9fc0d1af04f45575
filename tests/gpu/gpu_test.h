// The fixture of tests on a GPU: random programs, planned by the CUDA engine, run there and
// compared with the f64 definition. HEDDLE_GPU_PROBLEMS sets how many of each kind (300).
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <vector>

#include "api/executable.h"
#include "gpu/device_memory.h"
#include "support/program.h"

namespace heddle::testing {

int64_t gpu_problem_count();

/// A program's tensors on the device, and what executes them.
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

class OnGpu : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_TRUE(context_.status().is_ok()) << context_.status().message(); }

  struct Built {
    Program program;
    DataType io;
    Result<std::shared_ptr<const api::Executable>> executable;
  };
  static Built build(Program program);

  using Draw = std::function<Program(Random&)>;
  using Numbered = std::function<Program(Random&, int64_t number)>;
  /// What `draw` makes of the numbers from `first` to before `end`, which are their seeds, each
  /// with its plan. A problem compiles kernels of its own, so all cores make them.
  static std::vector<Built> build_all(const Numbered& draw, int64_t first, int64_t end);
  static std::vector<Built> build_all(const Draw& draw, int64_t first, int64_t end);
  /// Runs `count` problems; refusals are counted by their sentence and printed, and most of the
  /// problems must have been served. All cores build a batch of problems, and compare the one
  /// before with its definition.
  void run(const Numbered& draw, int64_t count);
  void run(const Draw& draw);
  /// Executes once; the outputs are in the program then.
  void execute(Built& built);

  DeviceContext context_;
};

}  // namespace heddle::testing
