// What device code calls the host's values.
#pragma once

#include <string>

#include "core/dtype.h"
#include "problem/attention.h"

namespace heddle::engine::cuda {

/// "bf16", "f16", "float", ...: the type kernels read an element of `type` as. Empty if they
/// cannot.
std::string device_type(DataType type);

/// The enumerator of attention::Dropout.
const char* dropout_name(problem::Dropout::Kind kind);

}  // namespace heddle::engine::cuda
