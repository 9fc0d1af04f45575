// The device code under kernels/, embedded in the binary: NVRTC reads headers from memory.
#pragma once

#include <cstdint>
#include <span>

namespace heddle::engine::cuda {

struct KernelSource {
  const char* path;  ///< below kernels/, as `#include` names it: "ptx/wgmma.cuh"
  const char* text;
};

std::span<const KernelSource> kernel_sources();

/// A digest of all of them, part of every compiled kernel's key.
uint64_t kernel_sources_digest();

}  // namespace heddle::engine::cuda
