// The NVIDIA driver's functions that tests call and the engine does not.
#pragma once

#include "engine/cuda/driver.h"
#include "engine/cuda/shared_object.h"

namespace heddle::testing {

/// The driver's library, to bind functions of it.
Result<engine::cuda::SharedObject> driver_library();

/// A call's result as the engine's driver says it.
Status check(engine::cuda::CuResult result, const char* call);

}  // namespace heddle::testing
