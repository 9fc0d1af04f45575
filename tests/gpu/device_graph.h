// Work captured into a CUDA graph: what is queued while it is recorded must neither allocate nor
// synchronise, or the recording fails.
#pragma once

#include <functional>

#include "core/status.h"

namespace heddle::testing {

class DeviceGraph {
 public:
  /// Records what `queue` puts on the stream it is given.
  explicit DeviceGraph(const std::function<Status(void* stream)>& queue);
  ~DeviceGraph();
  DeviceGraph(const DeviceGraph&) = delete;
  DeviceGraph& operator=(const DeviceGraph&) = delete;

  const Status& status() const { return status_; }
  /// Runs the recorded work and waits for it.
  Status replay() const;

 private:
  Status status_;
  void* stream_ = nullptr;
  void* graph_ = nullptr;
  void* executable_ = nullptr;
};

}  // namespace heddle::testing
