// Types, devices and dims as the C interface spells them.
#pragma once

#include <optional>

#include "core/dims.h"
#include "core/dtype.h"
#include "core/status.h"
#include "engine/devices.h"
#include "heddle/heddle.h"

namespace heddle::api {

/// Nothing of HEDDLE_DTYPE_UNSET.
Result<std::optional<DataType>> data_type(heddle_dtype given);
Result<engine::Device> device_from(heddle_device given);
/// `what` is what the sentence calls them, "Dims".
Result<Dims> dims_from(const int64_t* values, int32_t rank, const char* what);

}  // namespace heddle::api
