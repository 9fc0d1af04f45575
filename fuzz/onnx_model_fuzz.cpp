// Any bytes given to the reader of ONNX models yield a model or a sentence.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "tools/onnx_model.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace heddle::tools::onnx;
  static_cast<void>(read_model(std::string_view(reinterpret_cast<const char*>(data), size)));
  return 0;
}
