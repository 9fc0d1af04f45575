// Attributes of a node as they stand in the model: a replaced operator's schema gives no defaults.
#pragma once

#include <optional>
#include <string>

#include "core/status.h"
#include "onnxruntime/abi.h"

namespace heddle::onnxruntime {

/// An attribute of another type than asked for is refused; one that is missing has the default.
class Attributes {
 public:
  Attributes(const abi::Api& api, const abi::KernelInfo* info) : api_(api), info_(info) {}

  Result<int64_t> integer(const char* name, int64_t default_value);
  Result<int64_t> required_integer(const char* name);
  /// Numbers are f32 in a model, and so are defaults.
  Result<double> number(const char* name, float default_value);
  /// Nothing if it is missing.
  Result<std::optional<double>> optional_number(const char* name);
  Result<std::string> text(const char* name, std::string default_value);

  /// All that was read, so that nodes of equal attributes are known by equal words.
  const std::string& words() const { return words_; }

 private:
  bool is(abi::Status* status) const;
  bool has_integer(const char* name, int64_t& value) const;
  bool has_number(const char* name, float& value) const;
  bool has_text(const char* name) const;
  Status refuse_others(const char* name, const char* expected) const;
  template <class T>
  T noted(const char* name, T value);

  const abi::Api& api_;
  const abi::KernelInfo* info_;
  std::string words_;
};

}  // namespace heddle::onnxruntime
