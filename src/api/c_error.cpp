#include "api/c_error.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>

namespace heddle::api {
namespace {

thread_local std::string last_error;

/// Bytes of the UTF-8 character that `text` begins with; 0 if it begins with none.
size_t character_bytes(std::string_view text) {
  const auto byte = [&](size_t n) { return static_cast<unsigned char>(text[n]); };
  if (byte(0) < 0x80) return 1;
  const size_t length = byte(0) >> 5 == 6 ? 2 : byte(0) >> 4 == 14 ? 3 : byte(0) >> 3 == 30 ? 4 : 0;
  if (length == 0 || text.size() < length) return 0;
  uint32_t code = byte(0) & (0x7F >> length);
  for (size_t n = 1; n < length; ++n) {
    if (byte(n) >> 6 != 2) return 0;
    code = code << 6 | (byte(n) & 0x3F);
  }
  constexpr uint32_t kLeast[] = {0x80, 0x800, 0x10000};  // what fewer bytes would hold is no other
  const bool is_surrogate = code >> 11 == 0x1B;
  return code >= kLeast[length - 2] && code <= 0x10FFFF && !is_surrogate ? length : 0;
}

/// A sentence may quote bytes of a text that is not UTF-8, or the first ones of a character.
void make_utf8(std::string& sentence) {
  for (size_t at = 0; at < sentence.size();) {
    const size_t bytes = character_bytes(std::string_view(sentence).substr(at));
    if (bytes == 0) sentence[at] = '?';
    at += std::max<size_t>(bytes, 1);
  }
}

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
      make_utf8(last_error);
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
