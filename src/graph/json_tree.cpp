#include "graph/json_tree.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "graph/text.h"

namespace heddle::graph {
namespace {

/// Builds the tree from the parser's events. The parser does not say where a value begins, but the
/// text between two events is only separators, so the place of each follows from the one before.
class TreeBuilder {
 public:
  using number_integer_t = nlohmann::json::number_integer_t;
  using number_unsigned_t = nlohmann::json::number_unsigned_t;
  using number_float_t = nlohmann::json::number_float_t;
  using string_t = nlohmann::json::string_t;
  using binary_t = nlohmann::json::binary_t;

  explicit TreeBuilder(std::string_view text) : text_(text) {}

  bool null() {
    JsonValue value = begin(JsonValue::Kind::null);
    return scalar(std::move(value), 4);
  }
  bool boolean(bool b) {
    JsonValue value = begin(JsonValue::Kind::boolean);
    value.boolean = b;
    return scalar(std::move(value), b ? 4 : 5);
  }
  bool number_integer(number_integer_t i) {
    JsonValue value = begin(JsonValue::Kind::integer);
    value.integer = i;
    value.number = static_cast<double>(i);
    const size_t length = number_length(value.offset);
    return scalar(std::move(value), length);
  }
  bool number_unsigned(number_unsigned_t u) {
    const size_t offset = begin(JsonValue::Kind::integer).offset;
    if (u > static_cast<number_unsigned_t>(INT64_MAX)) {
      return fail(offset, fmt::format("the integer {} does not fit in 64 bits with a sign", u));
    }
    return number_integer(static_cast<number_integer_t>(u));
  }
  bool number_float(number_float_t d, const string_t&) {
    JsonValue value = begin(JsonValue::Kind::number);
    value.number = d;
    const size_t length = number_length(value.offset);
    return scalar(std::move(value), length);
  }
  bool string(string_t& s) {
    JsonValue value = begin(JsonValue::Kind::string);
    value.string = std::move(s);
    const size_t length = string_length(value.offset);
    return scalar(std::move(value), length);
  }
  bool binary(binary_t&) { return fail(position_, "binary values have no place in this form"); }

  bool start_object(size_t) { return open(JsonValue::Kind::object); }
  bool start_array(size_t) { return open(JsonValue::Kind::array); }
  bool end_object() { return close(); }
  bool end_array() { return close(); }

  bool key(string_t& name) {
    skip_separators();
    JsonValue& object = open_.back();
    const size_t offset = position_;
    if (object.members.size() == kMaxMembers) {
      return fail(offset, fmt::format("an object of more than the {} keys allowed", kMaxMembers));
    }
    for (const JsonValue::Member& member : object.members) {
      if (member.key == name)
        return fail(offset, fmt::format("the key \"{}\" is given twice", name));
    }
    position_ += string_length(offset);
    object.members.push_back({std::move(name), offset, {}});
    return true;
  }

  bool parse_error(size_t position, const std::string&, const nlohmann::json::exception& failure) {
    // "[json.exception.parse_error.101] parse error at line 1, column 2: <what>; last read: ..."
    // "[json.exception.out_of_range.406] <what>"
    std::string_view what = failure.what();
    if (const size_t at = what.find("] "); at != std::string_view::npos) what.remove_prefix(at + 2);
    if (const size_t at = what.find(": "); at != std::string_view::npos) what.remove_prefix(at + 2);
    return fail(position == 0 ? 0 : position - 1, std::string(what));
  }

  Result<JsonValue> result() && {
    if (!failure_.is_ok()) return failure_;
    return std::move(root_);
  }

 private:
  JsonValue begin(JsonValue::Kind kind) {
    skip_separators();
    JsonValue value;
    value.kind = kind;
    value.offset = position_;
    return value;
  }

  bool scalar(JsonValue value, size_t length) {
    position_ = value.offset + length;
    return place_value(std::move(value));
  }

  bool open(JsonValue::Kind kind) {
    JsonValue value = begin(kind);
    if (open_.size() == kMaxTextDepth) {
      return fail(value.offset,
                  fmt::format("nested deeper than the {} levels allowed", kMaxTextDepth));
    }
    ++position_;
    open_.push_back(std::move(value));
    return true;
  }

  bool close() {
    skip_separators();
    ++position_;
    JsonValue value = std::move(open_.back());
    open_.pop_back();
    return place_value(std::move(value));
  }

  bool place_value(JsonValue value) {
    if (open_.empty()) {
      root_ = std::move(value);
    } else if (JsonValue& parent = open_.back(); parent.kind == JsonValue::Kind::object) {
      parent.members.back().value = std::move(value);
    } else {
      parent.items.push_back(std::move(value));
    }
    return true;
  }

  bool fail(size_t offset, const std::string& what) {
    failure_ = error(Code::malformed_input, "{}: {}.", place(text_, offset), what);
    return false;
  }

  void skip_separators() {
    position_ = std::min(text_.find_first_not_of(" \t\r\n,:", position_), text_.size());
  }
  size_t number_length(size_t offset) const {
    return std::min(text_.find_first_not_of("0123456789+-.eE", offset), text_.size()) - offset;
  }
  size_t string_length(size_t offset) const {
    size_t end = offset + 1;
    while (end < text_.size() && text_[end] != '"') end += text_[end] == '\\' ? 2 : 1;
    return end + 1 - offset;
  }

  std::string_view text_;
  size_t position_ = 0;
  std::vector<JsonValue> open_;
  JsonValue root_;
  Status failure_;
};

}  // namespace

std::string_view kind_name(JsonValue::Kind kind) {
  switch (kind) {
    case JsonValue::Kind::null:
      return "null";
    case JsonValue::Kind::boolean:
      return "true or false";
    case JsonValue::Kind::integer:
      return "an integer";
    case JsonValue::Kind::number:
      return "a number";
    case JsonValue::Kind::string:
      return "a string";
    case JsonValue::Kind::array:
      return "an array";
    case JsonValue::Kind::object:
      return "an object";
  }
  return "a value";
}

std::string place(std::string_view text, size_t offset) {
  const std::string_view before = text.substr(0, offset);
  const size_t line_start = before.rfind('\n');
  const size_t column =
      line_start == std::string_view::npos ? before.size() : before.size() - line_start - 1;
  return fmt::format("line {}, column {}", std::count(before.begin(), before.end(), '\n') + 1,
                     column + 1);
}

Result<JsonValue> parse_json(std::string_view text) {
  if (text.size() > kMaxTextBytes) {
    return error(Code::malformed_input, "The text of {} bytes is longer than the {} bytes allowed.",
                 text.size(), kMaxTextBytes);
  }
  TreeBuilder builder(text);
  nlohmann::json::sax_parse(text.begin(), text.end(), &builder);
  return std::move(builder).result();
}

}  // namespace heddle::graph
