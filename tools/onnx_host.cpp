#include "tools/onnx_host.h"

#include <cstring>

namespace heddle::onnxruntime::abi {

struct Status {
  std::string message;
};

}  // namespace heddle::onnxruntime::abi

namespace heddle::tools::onnx {
namespace {

namespace abi = onnxruntime::abi;

abi::Status* failed(const char* message) { return new abi::Status{message}; }

template <class T>
abi::Status* attribute(const abi::KernelInfo* info, const char* name, T* value) {
  const auto found = info->node->attributes.find(name);
  const T* const given =
      found == info->node->attributes.end() ? nullptr : std::get_if<T>(&found->second);
  if (!given) return failed("the node has no such attribute");
  *value = *given;
  return nullptr;
}

/// As a host gives texts: their size with the end, and the text where there is memory.
abi::Status* copy_text(const std::string& text, char* out, size_t* size) {
  if (out) std::memcpy(out, text.c_str(), text.size() + 1);
  *size = text.size() + 1;
  return nullptr;
}

abi::Status* text_attribute(const abi::KernelInfo* info, const char* name, char* out,
                            size_t* size) {
  std::string text;
  if (abi::Status* status = attribute(info, name, &text)) return status;
  return copy_text(text, out, size);
}

abi::Api make_host() {
  abi::Api api{};
  api.create_status = [](abi::ErrorCode, const char* message) { return failed(message); };
  api.get_error_message = [](const abi::Status* status) { return status->message.c_str(); };
  api.release_status = [](abi::Status* status) { delete status; };
  api.get_attribute_int64 = attribute<int64_t>;
  api.get_attribute_float = attribute<float>;
  api.get_attribute_string = text_attribute;
  api.kernel_output_count = [](const abi::KernelInfo* info, size_t* count) -> abi::Status* {
    *count = info->node->outputs.size();
    return nullptr;
  };
  api.kernel_output_name = [](const abi::KernelInfo* info, size_t index, char* out, size_t* size) {
    return copy_text(info->node->outputs[index], out, size);
  };
  api.node_name = [](const abi::KernelInfo* info, char* out, size_t* size) {
    return copy_text(info->node->name, out, size);
  };
  return api;
}

}  // namespace

const onnxruntime::abi::Api& host() {
  static const abi::Api api = make_host();
  return api;
}

}  // namespace heddle::tools::onnx
