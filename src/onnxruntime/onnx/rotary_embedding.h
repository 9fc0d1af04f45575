// ONNX's RotaryEmbedding.
#pragma once

#include "onnxruntime/node.h"

namespace heddle::onnxruntime {

extern const Operator kRotaryEmbedding;

}  // namespace heddle::onnxruntime
