// com.microsoft.MultiHeadAttention.
#pragma once

#include "onnxruntime/node.h"

namespace heddle::onnxruntime {

extern const Operator kMultiHeadAttention;

}  // namespace heddle::onnxruntime
