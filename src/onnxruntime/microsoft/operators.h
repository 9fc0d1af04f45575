// All operators of the domain that Heddle has.
#pragma once

#include "onnxruntime/node.h"

namespace heddle::onnxruntime {

extern const Domain kMicrosoftDomain;

}  // namespace heddle::onnxruntime
