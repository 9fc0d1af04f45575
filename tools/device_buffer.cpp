#include "tools/device_buffer.h"

#include <utility>

#include "engine/memory.h"

namespace heddle::tools {

Result<DeviceBuffer> DeviceBuffer::make(engine::Device device, size_t bytes) {
  HEDDLE_ASSIGN(void* const data, engine::allocate(device, bytes, nullptr));
  return DeviceBuffer(device, data);
}

DeviceBuffer::DeviceBuffer(DeviceBuffer&& other) noexcept
    : device_(other.device_), data_(std::exchange(other.data_, nullptr)) {}

DeviceBuffer::~DeviceBuffer() { static_cast<void>(engine::free(device_, data_, nullptr)); }

}  // namespace heddle::tools
