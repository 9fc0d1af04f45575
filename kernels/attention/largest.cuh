// The largest magnitude that a kernel meets, as the bits of an f32: magnitudes order as these do,
// NaN last.
#pragma once

#include "../ptx/types.cuh"

namespace heddle::attention {

HEDDLE_DEVICE u32 magnitude(float x) { return __float_as_uint(x) & 0x7fffffffu; }
HEDDLE_DEVICE u32 larger(u32 a, u32 b) { return a > b ? a : b; }

/// Raises what began at 0 to that of a warp, all of whose lanes call it. Null: nobody asks.
HEDDLE_DEVICE void raise(u32* largest, u32 bits) {
  if (largest == nullptr) return;
  bits = __reduce_max_sync(0xffffffffu, bits);
  // It only grows: most warps find it as large.
  if (threadIdx.x % 32 == 0 && bits > *static_cast<volatile u32*>(largest))
    atomicMax(largest, bits);
}

}  // namespace heddle::attention
