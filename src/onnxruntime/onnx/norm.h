// ONNX's RMSNormalization, SimplifiedLayerNormalization, as which ONNX Runtime knew it before, and
// LayerNormalization.
#pragma once

#include "onnxruntime/node.h"

namespace heddle::onnxruntime {

extern const Operator kRmsNormalization;
extern const Operator kSimplifiedLayerNormalization;
extern const Operator kLayerNormalization;

}  // namespace heddle::onnxruntime
