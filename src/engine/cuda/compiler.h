// Run-time compilation of device code: CUDA C++ source in, a cubin for one architecture out.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/status.h"

namespace heddle::engine::cuda {

/// What the assembler reported of a kernel: what the compile tests hold it to.
struct KernelResources {
  std::string kernel;
  int registers = 0;
  int64_t stack_bytes = 0, spill_store_bytes = 0, spill_load_bytes = 0, shared_bytes = 0;
};

struct Cubin {
  std::vector<char> image;
  // Of one compiled now; the cache keeps neither.
  std::string log;  ///< everything NVRTC and the assembler said
  std::vector<KernelResources> kernels;
};

/// NVRTC as it was found on this machine.
struct CompilerVersion {
  int major = 0, minor = 0;
  std::string library;  ///< the name it was loaded under
};

/// The version of NVRTC, or why there is none. It is looked for under HEDDLE_NVRTC (a path), then
/// as libnvrtc.so.13, .12 and libnvrtc.so, then in the CUDA toolkit's usual folder, then among
/// NVIDIA's wheels.
Result<CompilerVersion> compiler_version();

/// The flags every kernel is compiled with, for `architecture` ("sm_90a", "sm_80").
std::vector<std::string> compile_flags(const std::string& architecture);

/// Compiles `source`, which may include any of Heddle's kernel headers by their path below
/// kernels/.
Result<Cubin> compile(const std::string& source, const std::string& name,
                      const std::string& architecture);

/// Reads the assembler's resource lines out of a compilation log.
std::vector<KernelResources> parse_resources(const std::string& log);

}  // namespace heddle::engine::cuda
