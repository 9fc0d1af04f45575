#include "engine/cuda/memory.h"

#include <cstdint>
#include <map>
#include <mutex>

#include "engine/cuda/context.h"
#include "engine/cuda/refuse_capture.h"
#include "engine/cuda/relaxed_capture.h"

namespace heddle::engine::cuda {
namespace {

// Without it every wait for the device would return what is free to it, and the next allocation
// would map it anew.
constexpr uint64_t kKeptBytes = uint64_t{1} << 30;

// A process has no more addresses; what the driver says of more is not always that there is none.
constexpr size_t kMostBytes = size_t{1} << 47;

CuDevicePointer address(const void* memory) { return reinterpret_cast<uintptr_t>(memory); }

/// The pool of the thread's device, kept until the process ends.
Result<CuMemoryPool> pool(const Driver& driver) {
  static std::mutex mutex;
  static auto& pools = *new std::map<CuDevice, CuMemoryPool>;
  CuDevice device = 0;
  HEDDLE_TRY(driver.check(driver.context_get_device(&device), "cuCtxGetDevice"));
  const std::lock_guard lock(mutex);
  if (const auto found = pools.find(device); found != pools.end()) return found->second;
  const MemoryPoolProperties properties{.location_id = device};
  CuMemoryPool made = nullptr;
  HEDDLE_TRY(driver.check(driver.memory_pool_create(&made, &properties), "cuMemPoolCreate"));
  uint64_t kept = kKeptBytes;
  const Status set = driver.check(
      driver.memory_pool_set_attribute(made, MemoryPoolAttribute::release_threshold, &kept),
      "cuMemPoolSetAttribute");
  if (!set.is_ok()) {
    driver.memory_pool_destroy(made);
    return set;
  }
  pools.emplace(device, made);
  return made;
}

/// Calls `body`, which is given the driver and the stream, where that may be done.
template <class Body>
Status on_stream(void* given, Body&& body) {
  HEDDLE_ASSIGN(const Driver* const driver, driver_with_context());
  const RelaxedCapture relaxed(*driver);
  const auto stream = static_cast<CuStream>(given);
  HEDDLE_TRY(refuse_capture(*driver, stream));
  return body(*driver, stream);
}

}  // namespace

Result<void*> allocate(size_t bytes, void* stream) {
  CuDevicePointer made = 0;
  HEDDLE_TRY(on_stream(stream, [&](const Driver& driver, CuStream queue) -> Status {
    HEDDLE_ASSIGN(CuMemoryPool from, pool(driver));
    const CuResult result =
        bytes > kMostBytes ? kCudaOutOfMemory : driver.memory_allocate(&made, bytes, from, queue);
    if (result == kCudaOutOfMemory) {
      return error(Code::out_of_memory, "The GPU has no memory for {} bytes.", bytes);
    }
    return driver.check(result, "cuMemAllocFromPoolAsync");
  }));
  return reinterpret_cast<void*>(made);
}

Status free(void* memory, void* stream) {
  return on_stream(stream, [&](const Driver& driver, CuStream queue) {
    return driver.check(driver.memory_free(address(memory), queue), "cuMemFreeAsync");
  });
}

Status clear(void* memory, size_t bytes, void* stream) {
  return on_stream(stream, [&](const Driver& driver, CuStream queue) {
    return driver.check(driver.memory_set(address(memory), 0, bytes, queue), "cuMemsetD8Async");
  });
}

Status copy_in(void* memory, const void* host, size_t bytes, void* stream) {
  return on_stream(stream, [&](const Driver& driver, CuStream queue) -> Status {
    HEDDLE_TRY(driver.check(driver.copy_to_device(address(memory), host, bytes, queue),
                            "cuMemcpyHtoDAsync"));
    return driver.check(driver.stream_synchronize(queue), "cuStreamSynchronize");
  });
}

Status copy(void* to, const void* from, size_t bytes, void* stream) {
  return on_stream(stream, [&](const Driver& driver, CuStream queue) {
    return driver.check(driver.copy_on_device(address(to), address(from), bytes, queue),
                        "cuMemcpyDtoDAsync");
  });
}

Status copy_out(void* host, const void* memory, size_t bytes, void* stream) {
  return on_stream(stream, [&](const Driver& driver, CuStream queue) -> Status {
    HEDDLE_TRY(driver.check(driver.copy_to_host(host, address(memory), bytes, queue),
                            "cuMemcpyDtoHAsync"));
    return driver.check(driver.stream_synchronize(queue), "cuStreamSynchronize");
  });
}

}  // namespace heddle::engine::cuda
