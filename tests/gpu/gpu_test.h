// The fixture of tests on a GPU: random programs, planned by the CUDA engine, run there and
// compared with the f64 definition. HEDDLE_GPU_PROBLEMS sets how many of each kind (96), and
// HEDDLE_GPU_SEED the first one's seed (0).
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <vector>

#include "api/executable.h"
#include "gpu/device_memory.h"
#include "support/program.h"

namespace heddle::testing {

/// A program's tensors on the device, and what executes them.
class OnDevice {
 public:
  OnDevice(Program& program, const api::Executable& executable)
      : executable_(executable),
        device_(program),
        workspace_(executable.workspace_bytes() + (kPlaces - 1) * kBetweenPlaces) {
    if (device_.status().is_ok()) bindings_ = device_.bindings(executable);
  }

  const Status& status() const { return device_.status(); }
  /// With its workspace at one of kPlaces places.
  Status queue(void* stream = nullptr, int64_t place = 0) const {
    char* const workspace = static_cast<char*>(workspace_.pointer()) + place * kBetweenPlaces;
    return executable_.execute(bindings_, workspace, stream);
  }
  static constexpr int64_t kPlaces = 256;
  Status copy_back() { return device_.copy_back(); }

 private:
  static constexpr int64_t kBetweenPlaces = 256;
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
  /// Calls do_one with each of 0 to count - 1, on as many threads as there are cores (32 at most),
  /// which all have the context; no more of them after a fatal failure.
  void at_once(int64_t count, const std::function<void(int64_t)>& do_one);
  /// What `draw` makes of the seeds from `first` to before `end`, each with its plan. A problem
  /// compiles kernels of its own, so all are made at once.
  static std::vector<Built> build_all(const Draw& draw, int64_t first, int64_t end);
  /// How many problems share what is compiled, and differ in sizes, strides and values.
  static constexpr int64_t kVariants = 8;
  /// Runs `variants` problems of each number up to `count`, or as many seeds as make
  /// HEDDLE_GPU_PROBLEMS, on all cores: each compiles, executes and compares with the definition.
  /// Refusals are counted by their sentence and printed; most of the problems must have been
  /// served.
  void run(const Numbered& draw, int64_t count, int64_t variants = kVariants);
  void run(const Draw& draw);
  /// Executes once; the outputs are in the program then.
  void execute(Built& built);
  /// Whether the outputs are the definition's, and nothing else was written.
  static ::testing::AssertionResult matches_definition(Built& built);

 private:
  struct Tally;
  void try_one(Built& built, Tally& tally);

 protected:
  DeviceContext context_;
};

}  // namespace heddle::testing
