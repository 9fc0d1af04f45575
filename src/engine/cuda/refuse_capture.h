// What is captured into a CUDA graph runs later: an allocation would be the graph's, and neither a
// copy nor an event could be waited for.
#pragma once

#include "core/status.h"
#include "engine/cuda/driver.h"

namespace heddle::engine::cuda {

inline Status refuse_capture(const Driver& driver, CuStream stream) {
  int status = 0;
  HEDDLE_TRY(driver.check(driver.stream_is_capturing(stream, &status), "cuStreamIsCapturing"));
  if (status == 0) return {};
  return error(Code::invalid_value,
               "The stream is being captured into a CUDA graph, expected one that is not.");
}

}  // namespace heddle::engine::cuda
