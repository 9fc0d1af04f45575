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

/// The same of several at once, read when this is made: that takes as long as a kernel's end may.
template <int kCount>
class Raised {
 public:
  HEDDLE_DEVICE explicit Raised(u32* const (&largest)[kCount]) {
#pragma unroll
    for (int i = 0; i < kCount; ++i)
      if (threadIdx.x % 32 == i) mine_ = largest[i];
    if (mine_ != nullptr) seen_ = *static_cast<volatile u32*>(mine_);
  }
  HEDDLE_DEVICE void raise(const u32 (&bits)[kCount]) const {
    u32 most = 0;
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const u32 of_warp = __reduce_max_sync(0xffffffffu, bits[i]);
      if (threadIdx.x % 32 == i) most = of_warp;
    }
    if (mine_ != nullptr && most > seen_) atomicMax(mine_, most);
  }

 private:
  u32* mine_ = nullptr;  ///< of lane i the i-th
  u32 seen_ = 0;
};

}  // namespace heddle::attention
