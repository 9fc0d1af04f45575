// com.microsoft.RotaryEmbedding.
#pragma once

#include "onnxruntime/node.h"

namespace heddle::onnxruntime {

extern const Operator kMicrosoftRotaryEmbedding;

}  // namespace heddle::onnxruntime
