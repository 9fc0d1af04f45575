// Memory of the calling thread's GPU, allocated and copied in the order of a stream. A thread
// without a context is given the primary one of device 0.
#pragma once

#include <cstddef>

#include "core/status.h"

namespace heddle::engine::cuda {

/// `bytes` is not 0.
Result<void*> allocate(size_t bytes, void* stream);
Status free(void* memory, void* stream);
/// Makes them zeros; returns before.
Status clear(void* memory, size_t bytes, void* stream);
/// From one place on the GPU to another; returns before.
Status copy(void* to, const void* from, size_t bytes, void* stream);
/// Both return when the copy has been made.
Status copy_in(void* memory, const void* host, size_t bytes, void* stream);
Status copy_out(void* host, const void* memory, size_t bytes, void* stream);

}  // namespace heddle::engine::cuda
