// A JSON document as a tree that knows where each value stands in its text, so that errors about
// meaning can name line and column as errors about syntax do.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/status.h"

namespace heddle::graph {

struct JsonValue {
  enum class Kind : uint8_t { null, boolean, integer, number, string, array, object };
  Kind kind = Kind::null;
  size_t offset = 0;  ///< byte in the text where the value begins
  bool boolean = false;
  int64_t integer = 0;
  double number = 0;  ///< also set for integers
  std::string string;
  std::vector<JsonValue> items;

  struct Member;
  std::vector<Member> members;
};

struct JsonValue::Member {
  std::string key;
  size_t offset = 0;  ///< of the key
  JsonValue value;
};

inline constexpr int kMaxTextDepth = 16;
inline constexpr size_t kMaxMembers = 64;  ///< of one object; no object of the form has as many

/// "a string", "an object", ...: what sentences call the value's kind.
std::string_view kind_name(JsonValue::Kind kind);
/// "line 3, column 7" of a byte of the text, both counted from 1.
std::string place(std::string_view text, size_t offset);
/// Parses the document. Refuses malformed text, duplicate keys, integers beyond 64 bits, texts
/// over kMaxTextBytes, nesting over kMaxTextDepth and objects over kMaxMembers, each with its
/// place.
Result<JsonValue> parse_json(std::string_view text);

}  // namespace heddle::graph
