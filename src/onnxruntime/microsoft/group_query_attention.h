// com.microsoft.GroupQueryAttention.
#pragma once

#include "onnxruntime/node.h"

namespace heddle::onnxruntime {

extern const Operator kGroupQueryAttention;

}  // namespace heddle::onnxruntime
