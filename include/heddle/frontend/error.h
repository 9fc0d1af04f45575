// Errors as values, with cuDNN frontend's codes.
#pragma once

#include <string>
#include <utility>

#include "heddle/heddle.h"

namespace heddle::frontend {

enum class [[nodiscard]] error_code_t{
    OK = HEDDLE_OK,
    ATTRIBUTE_NOT_SET = HEDDLE_ATTRIBUTE_NOT_SET,
    SHAPE_DEDUCTION_FAILED = HEDDLE_SHAPE_DEDUCTION_FAILED,
    INVALID_TENSOR_NAME = HEDDLE_INVALID_TENSOR_NAME,
    INVALID_VARIANT_PACK = HEDDLE_INVALID_VARIANT_PACK,
    GRAPH_NOT_SUPPORTED = HEDDLE_GRAPH_NOT_SUPPORTED,
    GRAPH_EXECUTION_PLAN_CREATION_FAILED = HEDDLE_GRAPH_EXECUTION_PLAN_CREATION_FAILED,
    GRAPH_EXECUTION_FAILED = HEDDLE_GRAPH_EXECUTION_FAILED,
    HEURISTIC_QUERY_FAILED = HEDDLE_HEURISTIC_QUERY_FAILED,
    UNSUPPORTED_GRAPH_FORMAT = HEDDLE_UNSUPPORTED_GRAPH_FORMAT,
    CUDA_API_FAILED = HEDDLE_CUDA_API_FAILED,
    INVALID_CUDA_DEVICE = HEDDLE_INVALID_CUDA_DEVICE,
    HANDLE_ERROR = HEDDLE_HANDLE_ERROR,
    INVALID_VALUE = HEDDLE_INVALID_VALUE,
    NVRTC_COMPILATION_FAILED = HEDDLE_NVRTC_COMPILATION_FAILED,
    MALFORMED_INPUT = HEDDLE_MALFORMED_INPUT,
    OUT_OF_MEMORY = HEDDLE_OUT_OF_MEMORY,
    IO_FAILED = HEDDLE_IO_FAILED,
    CUDNN_BACKEND_API_FAILED = 1000,  ///< for programs that name it: there is no such backend
};

/// A code and, unless it is OK, one sentence: what was given and what is allowed.
struct [[nodiscard]] error_object {
  error_code_t code = error_code_t::OK;
  std::string err_msg;

  error_code_t get_code() const { return code; }
  std::string get_message() const { return err_msg; }
  bool is_good() const { return code == error_code_t::OK; }
  bool is_bad() const { return !is_good(); }
  bool operator==(error_code_t other) const { return code == other; }
  bool operator!=(error_code_t other) const { return code != other; }
};

using error_t = error_object;

namespace detail {

/// The C interface's answer as an error_t.
inline error_t check(heddle_status status) {
  if (status == HEDDLE_OK) return {};
  return {static_cast<error_code_t>(status), heddle_last_error()};
}

}  // namespace detail
}  // namespace heddle::frontend
