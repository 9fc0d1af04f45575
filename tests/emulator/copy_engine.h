// What the driver writes into a tensor map, for the copy engine to read (device.h).
#pragma once

#include "engine/cuda/cuda_types.h"

namespace heddle::emulator {

/// Whether the driver would have written the map, and has: of layouts that no kernel uses it says
/// no.
bool encode_tensor_map(TensorMap* map, engine::cuda::TensorMapType type, unsigned rank,
                       void* address, const uint64_t* dims, const uint64_t* stride_bytes,
                       const unsigned* box, const unsigned* element_strides, int interleave,
                       engine::cuda::TensorMapSwizzle swizzle,
                       engine::cuda::TensorMapPromotion promotion, int out_of_bounds_fill);

}  // namespace heddle::emulator
