#include "engine/cuda/device.h"

#include <fmt/format.h>

#include <array>

namespace heddle::engine::cuda {

Result<Device> describe(const Driver& driver, CuDevice handle) {
  Device device{.handle = handle};
  std::array<char, 256> name{};
  HEDDLE_TRY(
      driver.check(driver.device_get_name(name.data(), static_cast<int>(name.size()) - 1, handle),
                   "cuDeviceGetName"));
  device.name = name.data();
  auto attribute = [&](DeviceAttribute which, auto& value) {
    int read = 0;
    Status status =
        driver.check(driver.device_get_attribute(&read, which, handle), "cuDeviceGetAttribute");
    value = read;
    return status;
  };
  int major = 0, minor = 0;
  HEDDLE_TRY(attribute(DeviceAttribute::compute_capability_major, major));
  HEDDLE_TRY(attribute(DeviceAttribute::compute_capability_minor, minor));
  HEDDLE_TRY(attribute(DeviceAttribute::multiprocessor_count, device.multiprocessors));
  HEDDLE_TRY(
      attribute(DeviceAttribute::max_shared_memory_per_block_optin, device.shared_bytes_per_block));
  device.compute_capability = major * 10 + minor;
  return device;
}

bool is_supported(const Device& device) { return device.compute_capability >= 80; }

Result<Device> current_device(const Driver& driver) {
  CuContext context = nullptr;
  HEDDLE_TRY(driver.check(driver.context_get_current(&context), "cuCtxGetCurrent"));
  CuDevice handle = 0;
  if (context) {
    HEDDLE_TRY(driver.check(driver.context_get_device(&handle), "cuCtxGetDevice"));
  } else {
    int count = 0;
    HEDDLE_TRY(driver.check(driver.device_get_count(&count), "cuDeviceGetCount"));
    if (count == 0) return error(Code::invalid_cuda_device, "the NVIDIA driver reports no device");
    HEDDLE_TRY(driver.check(driver.device_get(&handle, 0), "cuDeviceGet"));
  }
  return describe(driver, handle);
}

}  // namespace heddle::engine::cuda
