// Tiles in shared memory, kernels/tile/shared_tile.cuh and planes.cuh.
#pragma once

#include <cstdint>

#include "core/dtype.h"

namespace heddle::engine::cuda {

/// Bytes of a swizzled tile: a plane of 16 bits an element, three for f32.
int64_t tile_bytes(int64_t rows, int64_t columns, DataType type = DataType::bf16);

}  // namespace heddle::engine::cuda
