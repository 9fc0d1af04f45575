// Errors as values: a Status is fine, or a code and one sentence saying what was given and what is
// allowed. A Result<T> is a T or such a Status. Nothing in Heddle throws across a function that
// returns one of these.
#pragma once

#include <fmt/format.h>

#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>

namespace heddle {

/// Why something failed. The names are those of cuDNN's graph API (its error_code_t), so that a
/// program ported from it can keep its handling; the last group is Heddle's own.
enum class Code {
  ok,
  attribute_not_set,
  shape_deduction_failed,
  invalid_tensor_name,
  invalid_variant_pack,
  graph_not_supported,
  graph_execution_plan_creation_failed,
  graph_execution_failed,
  heuristic_query_failed,
  unsupported_graph_format,
  cuda_api_failed,
  invalid_cuda_device,
  handle_error,
  invalid_value,
  nvrtc_compilation_failed,
  malformed_input,  // a text, file or message that does not parse; the sentence says where
  out_of_memory,    // an allocation the caller asked for could not be had
  io_failed,        // a file could not be read or written
};

/// The code's name in upper case, as cuDNN's API prints it ("GRAPH_NOT_SUPPORTED").
std::string_view name(Code code);

class [[nodiscard]] Status {
 public:
  /// Sentences quote what was given, which may be megabytes long.
  static constexpr size_t kMostMessageBytes = 16 * 1024;

  Status() = default;
  /// Of a message longer than that the middle is left out.
  Status(Code code, std::string message);

  bool is_ok() const { return code_ == Code::ok; }
  Code code() const { return code_; }
  const std::string& message() const { return message_; }

 private:
  Code code_ = Code::ok;
  std::string message_;
};

/// Builds an error sentence with fmt's syntax: error(Code::invalid_value, "rank is {}, not 4", r).
template <class... Args>
Status error(Code code, fmt::format_string<Args...> format, Args&&... args) {
  return Status(code, fmt::format(format, std::forward<Args>(args)...));
}

template <class T>
class [[nodiscard]] Result {
 public:
  Result(T value) : state_(std::move(value)) {}
  /// From what converts to T (a shared_ptr of a derived class, say).
  template <class U>
  requires(std::is_convertible_v<U, T> && !std::is_same_v<U, T> && !std::is_same_v<U, Status> &&
           !std::is_same_v<U, Result>) Result(U value)
      : state_(T(std::move(value))) {}
  Result(Status failure) : state_(std::move(failure)) {}

  bool is_ok() const { return state_.index() == 0; }
  explicit operator bool() const { return is_ok(); }

  T& value() & { return std::get<0>(state_); }
  const T& value() const& { return std::get<0>(state_); }
  T&& value() && { return std::get<0>(std::move(state_)); }
  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }
  T&& operator*() && { return std::move(*this).value(); }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }

  /// The failure; an ok Status when there is a value.
  Status status() const { return is_ok() ? Status() : std::get<1>(state_); }

 private:
  std::variant<T, Status> state_;
};

}  // namespace heddle

/// Returns from the enclosing function with the failure of `expression`, a Status, if it is one.
#define HEDDLE_TRY(expression)                                                 \
  do {                                                                         \
    if (::heddle::Status heddle_status = (expression); !heddle_status.is_ok()) \
      return heddle_status;                                                    \
  } while (false)

/// HEDDLE_ASSIGN(auto x, f()): x is f()'s value, or the enclosing function returns f()'s failure.
#define HEDDLE_ASSIGN(declaration, expression) \
  HEDDLE_ASSIGN_NAMED(declaration, expression, HEDDLE_CONCAT(heddle_result_, __LINE__))
#define HEDDLE_ASSIGN_NAMED(declaration, expression, result) \
  auto result = (expression);                                \
  if (!result.is_ok()) return result.status();               \
  declaration = std::move(result).value()
#define HEDDLE_CONCAT(a, b) HEDDLE_CONCAT_EXPANDED(a, b)
#define HEDDLE_CONCAT_EXPANDED(a, b) a##b
