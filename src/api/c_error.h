// How failures leave through the C interface: a code, and a sentence kept for the calling thread.
#pragma once

#include <exception>
#include <new>

#include "core/status.h"
#include "heddle/heddle.h"

namespace heddle::api {

/// Keeps the sentence (or, for success, none) for heddle_last_error and returns the code.
heddle_status report(const Status& status) noexcept;

/// Runs `body`, which returns a Status; an exception becomes a failure like any other.
template <class Body>
heddle_status guarded(Body&& body) noexcept {
  try {
    return report(body());
  } catch (const std::bad_alloc&) {
    return report(Status(Code::out_of_memory, std::string()));
  } catch (const std::exception& exception) {
    return report(Status(Code::invalid_value, exception.what()));
  }
}

/// "q must not be null": the sentence for a null argument.
Status null_argument(const char* function, const char* argument);

}  // namespace heddle::api
