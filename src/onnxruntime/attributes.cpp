#include "onnxruntime/attributes.h"

#include "onnxruntime/host.h"

namespace heddle::onnxruntime {

/// Whether it is success; a failure is let go: the host has one for whatever is not there.
bool Attributes::is(abi::Status* status) const {
  if (!status) return true;
  api_.release_status(status);
  return false;
}

bool Attributes::has_integer(const char* name, int64_t& value) const {
  return is(api_.get_attribute_int64(info_, name, &value));
}

bool Attributes::has_number(const char* name, float& value) const {
  return is(api_.get_attribute_float(info_, name, &value));
}

bool Attributes::has_text(const char* name) const {
  size_t size = 0;
  return is(api_.get_attribute_string(info_, name, nullptr, &size));
}

Status Attributes::refuse_others(const char* name, const char* expected) const {
  int64_t integer;
  float number;
  const char* const given = has_integer(name, integer) ? "an integer"
                            : has_number(name, number) ? "a number"
                            : has_text(name)           ? "a string"
                                                       : nullptr;
  if (!given) return {};
  return error(Code::invalid_value, "The attribute {} is {}, expected {}.", name, given, expected);
}

template <class T>
T Attributes::noted(const char* name, T value) {
  words_ += fmt::format(" {}={}", name, value);
  return value;
}

Result<int64_t> Attributes::integer(const char* name, int64_t default_value) {
  int64_t value;
  if (has_integer(name, value)) return noted(name, value);
  HEDDLE_TRY(refuse_others(name, "an integer"));
  return noted(name, default_value);
}

Result<int64_t> Attributes::required_integer(const char* name) {
  int64_t value;
  if (has_integer(name, value)) return noted(name, value);
  HEDDLE_TRY(refuse_others(name, "an integer"));
  return error(Code::attribute_not_set, "The attribute {} is required.", name);
}

Result<double> Attributes::number(const char* name, float default_value) {
  HEDDLE_ASSIGN(const std::optional<double> given, optional_number(name));
  return given ? *given : noted(name, static_cast<double>(default_value));
}

Result<std::optional<double>> Attributes::optional_number(const char* name) {
  float value;
  if (has_number(name, value)) return std::optional(noted(name, static_cast<double>(value)));
  HEDDLE_TRY(refuse_others(name, "a number"));
  return std::optional<double>();
}

Result<std::string> Attributes::text(const char* name, std::string default_value) {
  size_t size = 0;
  if (!is(api_.get_attribute_string(info_, name, nullptr, &size))) {
    HEDDLE_TRY(refuse_others(name, "a string"));
    return noted(name, std::move(default_value));
  }
  std::string value(size, '\0');
  HEDDLE_TRY(status_from(api_, api_.get_attribute_string(info_, name, value.data(), &size)));
  value.resize(size - 1);  // the end of the string was counted
  return noted(name, std::move(value));
}

}  // namespace heddle::onnxruntime
