// A point of a stream of a device, known to be passed or not.
#pragma once

#include <utility>

#include "core/status.h"
#include "engine/devices.h"

namespace heddle::engine {

/// Passed until it is recorded, and on a CPU always, whose work is done when a call returns.
class Event {
 public:
  static Result<Event> make(Device device);
  Event(Event&& other) noexcept : of_gpu_(std::exchange(other.of_gpu_, nullptr)) {}
  Event& operator=(Event&&) = delete;
  ~Event();

  /// Passed when what is queued on `stream` by now is done.
  Status record(void* stream);
  Result<bool> is_passed() const;
  Status wait() const;

 private:
  explicit Event(void* of_gpu) : of_gpu_(of_gpu) {}

  void* of_gpu_;  ///< null on a CPU
};

}  // namespace heddle::engine
