#include "engine/memory.h"

#include <cstdint>
#include <cstring>
#include <new>

#include "engine/cuda/memory.h"

namespace heddle::engine {
namespace {

constexpr std::align_val_t kCpuAlignment{64};

}  // namespace

Result<void*> allocate(Device device, size_t bytes, void* stream) {
  if (bytes == 0) return nullptr;
  if (device == Device::cuda) return cuda::allocate(bytes, stream);
  // More than half of all addresses would wrap around where the allocator rounds up.
  if (bytes <= PTRDIFF_MAX) {
    if (void* const memory = ::operator new(bytes, kCpuAlignment, std::nothrow)) return memory;
  }
  return error(Code::out_of_memory, "The host has no memory for {} bytes.", bytes);
}

Status free(Device device, void* memory, void* stream) {
  if (!memory) return {};
  if (device == Device::cuda) return cuda::free(memory, stream);
  ::operator delete(memory, kCpuAlignment);
  return {};
}

Status clear(Device device, void* memory, size_t bytes, void* stream) {
  if (bytes == 0) return {};
  if (device == Device::cuda) return cuda::clear(memory, bytes, stream);
  std::memset(memory, 0, bytes);
  return {};
}

Status copy(Device device, void* to, const void* from, size_t bytes, void* stream) {
  if (bytes == 0) return {};
  if (device == Device::cuda) return cuda::copy(to, from, bytes, stream);
  std::memcpy(to, from, bytes);
  return {};
}

Status copy_in(Device device, void* memory, const void* host, size_t bytes, void* stream) {
  if (bytes == 0) return {};
  if (device == Device::cuda) return cuda::copy_in(memory, host, bytes, stream);
  std::memcpy(memory, host, bytes);
  return {};
}

Status copy_out(Device device, void* host, const void* memory, size_t bytes, void* stream) {
  if (bytes == 0) return {};
  if (device == Device::cuda) return cuda::copy_out(host, memory, bytes, stream);
  std::memcpy(host, memory, bytes);
  return {};
}

}  // namespace heddle::engine
