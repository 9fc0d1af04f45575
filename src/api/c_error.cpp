#include "api/c_error.h"

namespace heddle::api {
namespace {

thread_local std::string last_error;

heddle_status status_of(Code code) { return static_cast<heddle_status>(code); }

// The C interface numbers the codes in the order of Code.
static_assert(static_cast<int>(Code::ok) == HEDDLE_OK);
static_assert(static_cast<int>(Code::invalid_variant_pack) == HEDDLE_INVALID_VARIANT_PACK);
static_assert(static_cast<int>(Code::invalid_value) == HEDDLE_INVALID_VALUE);
static_assert(static_cast<int>(Code::malformed_input) == HEDDLE_MALFORMED_INPUT);
static_assert(static_cast<int>(Code::io_failed) == HEDDLE_IO_FAILED);

}  // namespace

heddle_status report(const Status& status) noexcept {
  try {
    if (status.is_ok()) {
      last_error.clear();
    } else if (status.message().empty()) {
      last_error = "There was not enough memory.";
    } else {
      last_error = status.message();
    }
  } catch (const std::bad_alloc&) {
    last_error.clear();  // no memory for the sentence: the code has to do
  }
  return status_of(status.code());
}

Status null_argument(const char* function, const char* argument) {
  return error(Code::invalid_value, "{} was given a null pointer for {}.", function, argument);
}

}  // namespace heddle::api

extern "C" {

const char* heddle_last_error(void) { return heddle::api::last_error.c_str(); }

const char* heddle_status_name(heddle_status status) {
  if (status < HEDDLE_OK || status > HEDDLE_IO_FAILED) return "UNKNOWN";
  return heddle::name(static_cast<heddle::Code>(status)).data();  // names are literals
}

const char* heddle_version(void) { return HEDDLE_VERSION; }

}  // extern "C"
