// What is known of a GPU without it, for graphs that are planned on another machine.
#pragma once

#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

#include "heddle/frontend/driver.h"
#include "heddle/frontend/handle.h"

namespace heddle::frontend {

/// A GPU's SM version (90) and its number of multiprocessors.
class DeviceProperties {
 public:
  /// The machine's GPU with this number; asked by `build`.
  DeviceProperties& set_device_id(int32_t value) { return device_ = value, *this; }
  /// A handle's GPU is that of the calling thread's context, as everywhere.
  DeviceProperties& set_handle(const Handle&) { return *this; }

  error_t build() {
    // CUdevice_attribute of the driver's interface.
    constexpr int kMultiprocessors = 16, kMajor = 75, kMinor = 76;
    int number = 0, major = 0, minor = 0;
    error_t error = detail::call_driver("cuInit", 0u);
    if (error.is_good()) error = detail::call_driver("cuDeviceGet", &number, device_);
    for (auto [value, attribute] :
         {std::pair{&major, kMajor}, {&minor, kMinor}, {&sm_count_, kMultiprocessors}}) {
      if (error.is_good())
        error = detail::call_driver("cuDeviceGetAttribute", value, attribute, number);
    }
    if (error.is_good()) sm_version_ = 10 * major + minor;
    return error;
  }

  /// As text, for deserialize on another machine.
  error_t serialize(std::vector<uint8_t>& bytes) const {
    if (sm_version_ == 0) {
      return {error_code_t::ATTRIBUTE_NOT_SET,
              "The device properties are of no device yet, expected build or deserialize before."};
    }
    const std::string text = "{\"sm_version\": " + std::to_string(sm_version_) +
                             ", \"sm_count\": " + std::to_string(sm_count_) + "}";
    bytes.assign(text.begin(), text.end());
    return {};
  }

  error_t deserialize(const std::vector<uint8_t>& bytes) {
    const std::string text(bytes.begin(), bytes.end());
    int version = 0, count = 0, read = 0;
    if (std::sscanf(text.c_str(), "{\"sm_version\": %9d, \"sm_count\": %9d}%n", &version, &count,
                    &read) != 2 ||
        read != static_cast<int>(text.size()) || version <= 0 || count < 0) {
      return {error_code_t::INVALID_VALUE,
              "The bytes are those of no device properties, expected what serialize gave."};
    }
    sm_version_ = version;
    sm_count_ = count;
    return {};
  }

  /// 0 before build and deserialize.
  int32_t get_sm_version() const { return sm_version_; }
  int32_t get_sm_count() const { return sm_count_; }

 private:
  int32_t device_ = 0, sm_version_ = 0, sm_count_ = 0;
};

}  // namespace heddle::frontend
