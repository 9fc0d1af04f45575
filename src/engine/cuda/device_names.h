// What device code calls the host's values.
#pragma once

#include <string>

#include "attention/rope_parameters.h"
#include "core/dtype.h"
#include "problem/attention.h"
#include "ptx/element.h"

namespace heddle::engine::cuda {

/// What kernels read an element of `type` as; a boolean is a byte, and so is what no kernel reads.
Element element_of(DataType type);
/// "bf16", "f16", "float", ...: the type of device code.
const char* device_type(Element element);
const char* device_type(DataType type);

attention::Dropout dropout_of(problem::Dropout::Kind kind);
attention::RopePairing pairing_of(problem::Rope::Pairing pairing);
/// Of keys or values.
attention::KeyRows rows_of(const problem::Storage& storage);

/// Enumerators by their names.
const char* name(Element element);
const char* name(attention::Dropout dropout);
const char* name(attention::KeyRows rows);
const char* name(attention::RopePairing pairing);

}  // namespace heddle::engine::cuda
