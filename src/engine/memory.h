// Memory of a device, for programs without an allocator of their own.
#pragma once

#include <cstddef>

#include "core/status.h"
#include "engine/devices.h"

namespace heddle::engine {

/// Null for 0 bytes; `stream` is a CUstream on a GPU, ignored on the CPU.
Result<void*> allocate(Device device, size_t bytes, void* stream);
/// After what is queued on `stream`; null is allowed.
Status free(Device device, void* memory, void* stream);
/// Makes them zeros; on a GPU it returns before.
Status clear(Device device, void* memory, size_t bytes, void* stream);
/// From one place of the device's memory to another; on a GPU it returns before.
Status copy(Device device, void* to, const void* from, size_t bytes, void* stream);
/// Both return when the copy has been made.
Status copy_in(Device device, void* memory, const void* host, size_t bytes, void* stream);
Status copy_out(Device device, void* host, const void* memory, size_t bytes, void* stream);

}  // namespace heddle::engine
