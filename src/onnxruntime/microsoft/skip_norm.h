// com.microsoft SkipSimplifiedLayerNormalization and SkipLayerNormalization: the sum of input, skip
// and a bias, normalised.
#pragma once

#include "onnxruntime/node.h"

namespace heddle::onnxruntime {

extern const Operator kSkipSimplifiedLayerNormalization;
extern const Operator kSkipLayerNormalization;

}  // namespace heddle::onnxruntime
