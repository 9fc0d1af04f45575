// What the CUDA engine would do on a device that is not here.
#pragma once

#include <memory>

#include "engine/cuda/target.h"
#include "engine/engine.h"

namespace heddle::engine::cuda {

/// Plans without a driver, a compiler or a device. Its plans run nothing; their descriptions go on
/// for a line about each kernel, which says if it is in the archive that was installed, and each
/// way that was passed over.
std::unique_ptr<const Engine> target_engine(Target target);

}  // namespace heddle::engine::cuda
