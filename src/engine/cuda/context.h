// The driver for calls that need a context.
#pragma once

#include "engine/cuda/driver.h"

namespace heddle::engine::cuda {

/// The driver, and on the calling thread a context: one without is given the primary one of device
/// 0, which is kept until the process ends.
Result<const Driver*> driver_with_context();

}  // namespace heddle::engine::cuda
