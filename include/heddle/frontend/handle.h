// Where a graph runs.
#pragma once

#include "heddle/frontend/error.h"

namespace heddle::frontend {

/// The device, and on a GPU the CUstream to queue on.
struct Handle {
  heddle_device device = HEDDLE_CPU;
  void* stream = nullptr;

  Handle() = default;
  Handle(heddle_device on, void* queue = nullptr) : device(on), stream(queue) {}
  /// What a pointer, as cudnnHandle_t is one, says; null is no device, which no graph runs on.
  Handle(const Handle* at)
      : device(at ? at->device : static_cast<heddle_device>(-1)),
        stream(at ? at->stream : nullptr) {}

  bool is_null() const { return device == static_cast<heddle_device>(-1); }
  error_t check() const {
    if (!is_null()) return {};
    return {error_code_t::HANDLE_ERROR, "The handle is null, expected one of a device."};
  }
};

}  // namespace heddle::frontend
