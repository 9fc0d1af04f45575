#include "core/status.h"

namespace heddle {
namespace {

/// Whether a character of UTF-8 begins here.
bool is_first_byte(char byte) { return (static_cast<unsigned char>(byte) & 0xC0) != 0x80; }

/// The message's beginning says where, its end what was expected.
std::string without_middle(const std::string& message) {
  size_t head = Status::kMostMessageBytes / 4 * 3,
         tail = message.size() - Status::kMostMessageBytes / 8;
  while (head > 0 && !is_first_byte(message[head])) --head;
  while (tail < message.size() && !is_first_byte(message[tail])) ++tail;
  return fmt::format("{} [{} bytes are left out] {}", message.substr(0, head), tail - head,
                     message.substr(tail));
}

}  // namespace

Status::Status(Code code, std::string message)
    : code_(code),
      message_(message.size() > kMostMessageBytes ? without_middle(message) : std::move(message)) {}

std::string_view name(Code code) {
  switch (code) {
    case Code::ok:
      return "OK";
    case Code::attribute_not_set:
      return "ATTRIBUTE_NOT_SET";
    case Code::shape_deduction_failed:
      return "SHAPE_DEDUCTION_FAILED";
    case Code::invalid_tensor_name:
      return "INVALID_TENSOR_NAME";
    case Code::invalid_variant_pack:
      return "INVALID_VARIANT_PACK";
    case Code::graph_not_supported:
      return "GRAPH_NOT_SUPPORTED";
    case Code::graph_execution_plan_creation_failed:
      return "GRAPH_EXECUTION_PLAN_CREATION_FAILED";
    case Code::graph_execution_failed:
      return "GRAPH_EXECUTION_FAILED";
    case Code::heuristic_query_failed:
      return "HEURISTIC_QUERY_FAILED";
    case Code::unsupported_graph_format:
      return "UNSUPPORTED_GRAPH_FORMAT";
    case Code::cuda_api_failed:
      return "CUDA_API_FAILED";
    case Code::invalid_cuda_device:
      return "INVALID_CUDA_DEVICE";
    case Code::handle_error:
      return "HANDLE_ERROR";
    case Code::invalid_value:
      return "INVALID_VALUE";
    case Code::nvrtc_compilation_failed:
      return "NVRTC_COMPILATION_FAILED";
    case Code::malformed_input:
      return "MALFORMED_INPUT";
    case Code::out_of_memory:
      return "OUT_OF_MEMORY";
    case Code::io_failed:
      return "IO_FAILED";
  }
  return "UNKNOWN";
}

}  // namespace heddle
