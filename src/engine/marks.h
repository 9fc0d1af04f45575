// Points of a device's time, for programs that measure.
#pragma once

#include <chrono>
#include <vector>

#include "core/status.h"
#include "engine/devices.h"

namespace heddle::engine {

/// Marks by number, from 0 to below count(). On a CPU, whose work is done when a call returns, they
/// are the host's clock.
class Marks {
 public:
  static Result<Marks> make(Device device, size_t count);
  Marks(Marks&& other) noexcept;
  Marks& operator=(Marks&&) = delete;
  ~Marks();

  size_t count() const { return device_ == Device::cuda ? events_.size() : times_.size(); }
  /// On a GPU it is passed when what is queued on `stream` before it is done.
  Status set(size_t mark, void* stream);
  /// Waits until both have been passed.
  Result<double> seconds(size_t from, size_t to) const;

 private:
  explicit Marks(Device device) : device_(device) {}

  Device device_;
  std::vector<void*> events_;                                 ///< of a GPU
  std::vector<std::chrono::steady_clock::time_point> times_;  ///< of a CPU
};

}  // namespace heddle::engine
