// ONNX's Attention, versions 23 to 25.
#pragma once

#include "onnxruntime/node.h"

namespace heddle::onnxruntime {

extern const Operator kAttention;

}  // namespace heddle::onnxruntime
