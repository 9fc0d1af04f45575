// Executables by device and graph text, so that a repeated call of one graph parses and plans
// nothing.
#pragma once

#include <map>
#include <memory>
#include <shared_mutex>
#include <string>
#include <string_view>
#include <unordered_map>

#include "api/executable.h"
#include "engine/devices.h"

namespace heddle::api {

/// Thread-safe. Finding what is there takes a shared lock and allocates nothing.
class PlanCache {
 public:
  explicit PlanCache(engine::Device device) : device_(device) {}

  Result<std::shared_ptr<const Executable>> find_or_build(std::string_view text);

  /// A process that makes graphs without end (a shape each) must not keep them all: at this many
  /// a device's part begins anew. Executables in use live on with their users. A CUDA graph that
  /// captured one's launches does not need it: it has their arguments, and kernels stay loaded.
  static constexpr size_t kCapacity = 4096;

 private:
  struct Hash : std::hash<std::string_view> {
    using is_transparent = void;
  };

  using Executables =
      std::unordered_map<std::string, std::shared_ptr<const Executable>, Hash, std::equal_to<>>;

  engine::Device device_;
  std::shared_mutex mutex_;
  std::map<int, Executables> executables_;  ///< by the device's ordinal: its kernels are its own
};

}  // namespace heddle::api
