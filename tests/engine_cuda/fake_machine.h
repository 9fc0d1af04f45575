// A machine without a GPU on which plans are made and executed, by a driver and a compiler that do
// nothing (fake/).
#pragma once

#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "engine_cuda/fake/calls.h"
#include "problem/problem.h"

namespace heddle::engine::cuda {

/// What its driver was asked for.
testing::FakeCudaCalls& calls();

/// A kernel cache and a count of compilations of its own.
class FakeMachine : public ::testing::Test {
 protected:
  void SetUp() override;
  void TearDown() override;

  std::filesystem::path log() const { return root_ / "compilations"; }
  int64_t compilations() const;
  /// A source nobody else compiles.
  std::string source(const std::string& text = "") const { return root_.string() + text; }

  std::filesystem::path root_;
};

/// Memory for every operand of a plan that runs nothing; by-value scalars are read of it.
struct Buffers {
  alignas(256) std::array<char, 4096> memory{};
  std::vector<void*> pointers;

  explicit Buffers(size_t operands) : pointers(operands, memory.data()) {}
};

/// Plans the problem and executes it once: something is launched, nothing is allocated.
void expect_executes(const problem::Problem& problem, size_t operands);

}  // namespace heddle::engine::cuda
