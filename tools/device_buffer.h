// Memory of a device for as long as an object is there.
#pragma once

#include <cstddef>

#include "core/status.h"
#include "engine/devices.h"

namespace heddle::tools {

class DeviceBuffer {
 public:
  static Result<DeviceBuffer> make(engine::Device device, size_t bytes);
  DeviceBuffer(DeviceBuffer&& other) noexcept;
  DeviceBuffer& operator=(DeviceBuffer&&) = delete;
  ~DeviceBuffer();

  /// Null of 0 bytes.
  void* data() const { return data_; }

 private:
  DeviceBuffer(engine::Device device, void* data) : device_(device), data_(data) {}

  engine::Device device_;
  void* data_;
};

}  // namespace heddle::tools
