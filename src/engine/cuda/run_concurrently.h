// Work that takes long, such as compilations, on all cores.
#pragma once

#include <cstddef>
#include <functional>

#include "core/status.h"

namespace heddle::engine::cuda {

/// Calls run(n) for every n below `count`, as many at once as there are cores, the calling thread
/// among them. The first failure is returned; what has not begun by then is not begun.
Status run_concurrently(size_t count, const std::function<Status(size_t)>& run);

}  // namespace heddle::engine::cuda
