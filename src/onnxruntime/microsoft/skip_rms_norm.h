// com.microsoft SkipSimplifiedLayerNormalization: the sum of input, skip and a bias, normalised.
#pragma once

#include "onnxruntime/node.h"

namespace heddle::onnxruntime {

extern const Operator kSkipSimplifiedLayerNormalization;

}  // namespace heddle::onnxruntime
