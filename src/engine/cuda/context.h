// Contexts of threads that have none, as those of an autograd engine, whose first call of CUDA may
// be ours.
#pragma once

#include "engine/cuda/driver.h"

namespace heddle::engine::cuda {

/// Makes the device's primary context, kept until the process ends, that of the calling thread, if
/// it has none.
Status give_context(const Driver& driver, CuDevice device);

/// The driver, and on the calling thread a context: one without is given device 0's.
Result<const Driver*> driver_with_context();

}  // namespace heddle::engine::cuda
