// The CUDA engine: every problem on NVIDIA GPUs from sm_80 on, through kernels compiled when
// needed.
#pragma once

#include "engine/engine.h"

namespace heddle::engine::cuda {

/// The engine for the device of the calling thread's context (device 0 without one). Without a
/// driver, a compiler or a device it refuses every problem, saying which is missing.
const Engine& cuda_engine();

/// OK where the driver has a device; else what is missing.
Status find_any_device();

/// The number of the device that the engine's next plan in this thread is for; 0 without a driver.
int current_ordinal();

}  // namespace heddle::engine::cuda
