// Plans may be made by a call that is being captured into a CUDA graph, the first of its kind:
// loading kernels is no work on the stream, but the driver refuses it then unless the thread is
// relaxed.
#pragma once

#include "engine/cuda/driver.h"

namespace heddle::engine::cuda {

class RelaxedCapture {
 public:
  explicit RelaxedCapture(const Driver& driver) : driver_(driver) {
    (void)driver_.exchange_capture_mode(&mode_);
  }
  ~RelaxedCapture() { (void)driver_.exchange_capture_mode(&mode_); }
  RelaxedCapture(const RelaxedCapture&) = delete;
  RelaxedCapture& operator=(const RelaxedCapture&) = delete;

 private:
  const Driver& driver_;
  CaptureMode mode_ = CaptureMode::relaxed;
};

}  // namespace heddle::engine::cuda
