// What a compiled kernel must be: without spills, stack frames or local memory, within the
// registers and shared memory of its launch, and made of the instructions it was written for.
#pragma once

#include <string>
#include <vector>

#include "engine/cuda/lowering.h"

namespace heddle::engine::cuda {

/// A kernel and machine instructions that must occur in it ("HGMMA"), each at least once.
struct Instructed {
  std::string kernel;
  std::vector<std::string> instructions;
};

/// Compiles all units of a lowering for `architecture` and reports, as test failures, what is wrong
/// with their kernels, once. Instructions are read by nvdisasm, which HEDDLE_NVDISASM names.
void expect_clean(const Result<Lowering>& lowering, const std::string& architecture,
                  const std::vector<Instructed>& instructed = {});

}  // namespace heddle::engine::cuda
