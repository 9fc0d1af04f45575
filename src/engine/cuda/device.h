// GPUs, and what kernels are compiled for on them.
#pragma once

#include <string>

#include "engine/cuda/driver.h"

namespace heddle::engine::cuda {

/// What kernel choice needs to know of a device.
struct Device {
  CuDevice handle = 0;
  std::string name;
  int compute_capability = 0;  ///< 90 for 9.0
  int multiprocessors = 0;
  int64_t shared_bytes_per_block = 0;
};

Result<Device> describe(const Driver& driver, CuDevice device);
/// Whether kernels can be compiled for it: compute capability 8.0 or newer.
bool is_supported(const Device& device);
/// The device of the calling thread's current context, else device 0.
Result<Device> current_device(const Driver& driver);

}  // namespace heddle::engine::cuda
