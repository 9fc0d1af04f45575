// A host that stands in for ONNX Runtime where a session makes the kernel of a node.
#pragma once

#include "onnxruntime/abi.h"
#include "tools/onnx_model.h"

namespace heddle::onnxruntime::abi {

/// A node as a session shows it to the kernel it makes.
struct KernelInfo {
  const tools::onnx::Node* node;
};

}  // namespace heddle::onnxruntime::abi

namespace heddle::tools::onnx {

/// What making a kernel calls, and nothing else.
const onnxruntime::abi::Api& host();

}  // namespace heddle::tools::onnx
