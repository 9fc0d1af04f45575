// ONNX's RMSNormalization, and SimplifiedLayerNormalization, as which ONNX Runtime knew it before.
#pragma once

#include "onnxruntime/node.h"

namespace heddle::onnxruntime {

extern const Operator kRmsNormalization;
extern const Operator kSimplifiedLayerNormalization;

}  // namespace heddle::onnxruntime
