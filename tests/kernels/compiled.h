// What a compiled kernel must be: without spills, stack frames or local memory, within the
// registers and shared memory of its launch, and made of the instructions it was written for.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/cuda/kernel_unit.h"

namespace heddle::engine::cuda {

/// A kernel of a translation unit, as it will be launched.
struct ExpectedKernel {
  std::string name;
  int threads = 0;
  int64_t shared_bytes = 0;  ///< dynamic
  /// Machine instructions that must occur ("HGMMA"), each at least once.
  std::vector<std::string> instructions;
};

/// Compiles `source` for `architecture` and reports, as test failures, what is wrong with its
/// kernels, once. Instructions are read by nvdisasm, which HEDDLE_NVDISASM names.
void expect_clean(const std::string& source, const std::string& architecture,
                  const std::vector<ExpectedKernel>& kernels);

/// The same of all `units` of a problem, which hold these kernels, in any order, and no others.
void expect_all_clean(const std::vector<KernelUnit>& units, const std::string& architecture,
                      const std::vector<ExpectedKernel>& kernels);

}  // namespace heddle::engine::cuda
