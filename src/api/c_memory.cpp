// Devices and their memory through the C interface.
#include "api/c_error.h"
#include "api/c_values.h"
#include "engine/memory.h"

namespace heddle::api {
namespace {

Status default_device(heddle_device* device) {
  if (!device) return null_argument("heddle_default_device", "device");
  HEDDLE_ASSIGN(const engine::Device found, engine::default_device());
  *device = found == engine::Device::cpu ? HEDDLE_CPU : HEDDLE_CUDA;
  return {};
}

Status allocate(heddle_device device, size_t bytes, void* stream, void** memory) {
  if (!memory) return null_argument("heddle_memory_allocate", "memory");
  *memory = nullptr;
  HEDDLE_ASSIGN(const engine::Device on, device_from(device));
  HEDDLE_ASSIGN(*memory, engine::allocate(on, bytes, stream));
  return {};
}

Status free(heddle_device device, void* memory, void* stream) {
  HEDDLE_ASSIGN(const engine::Device on, device_from(device));
  return engine::free(on, memory, stream);
}

Status clear(heddle_device device, void* memory, size_t bytes, void* stream) {
  HEDDLE_ASSIGN(const engine::Device on, device_from(device));
  if (bytes > 0 && !memory) return null_argument("heddle_memory_clear", "memory");
  return engine::clear(on, memory, bytes, stream);
}

Status copy_in(heddle_device device, void* memory, const void* host, size_t bytes, void* stream) {
  HEDDLE_ASSIGN(const engine::Device on, device_from(device));
  if (bytes > 0 && !memory) return null_argument("heddle_memory_copy_in", "memory");
  if (bytes > 0 && !host) return null_argument("heddle_memory_copy_in", "host");
  return engine::copy_in(on, memory, host, bytes, stream);
}

Status copy_out(heddle_device device, void* host, const void* memory, size_t bytes, void* stream) {
  HEDDLE_ASSIGN(const engine::Device on, device_from(device));
  if (bytes > 0 && !host) return null_argument("heddle_memory_copy_out", "host");
  if (bytes > 0 && !memory) return null_argument("heddle_memory_copy_out", "memory");
  return engine::copy_out(on, host, memory, bytes, stream);
}

}  // namespace
}  // namespace heddle::api

using namespace heddle;
using api::guarded;

extern "C" {

heddle_status heddle_default_device(heddle_device* device) {
  return guarded([&] { return api::default_device(device); });
}

heddle_status heddle_memory_allocate(heddle_device device, size_t bytes, void* stream,
                                     void** memory) {
  return guarded([&] { return api::allocate(device, bytes, stream, memory); });
}

heddle_status heddle_memory_free(heddle_device device, void* memory, void* stream) {
  return guarded([&] { return api::free(device, memory, stream); });
}

heddle_status heddle_memory_clear(heddle_device device, void* memory, size_t bytes, void* stream) {
  return guarded([&] { return api::clear(device, memory, bytes, stream); });
}

heddle_status heddle_memory_copy_in(heddle_device device, void* memory, const void* host,
                                    size_t bytes, void* stream) {
  return guarded([&] { return api::copy_in(device, memory, host, bytes, stream); });
}

heddle_status heddle_memory_copy_out(heddle_device device, void* host, const void* memory,
                                     size_t bytes, void* stream) {
  return guarded([&] { return api::copy_out(device, host, memory, bytes, stream); });
}

}  // extern "C"
