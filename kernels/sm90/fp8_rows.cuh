// Rows of a fragment (fragment.cuh) in memory as e4m3.
#pragma once

#include "../ptx/wgmma_fp8.cuh"

namespace heddle::sm90 {

/// A scale that a caller may leave out, in device memory.
HEDDLE_DEVICE float scale_at(const float* scale) { return scale != nullptr ? *scale : 1.0f; }

/// Writes row half h of a 64 x kColumns fragment, each number times `scale`, to the row at `row`,
/// if it exists. A quad has the pairs of columns of a row side by side: of 32 columns each thread
/// is given the 8 that it writes.
template <int kColumns>
HEDDLE_DEVICE void store_fp8_row(u8* row, bool exists, const float (&out)[kColumns / 2], int h,
                                 float scale) {
  const int lane = threadIdx.x % 4;
  const bool odd = lane % 2 != 0, upper = lane >= 2;
#pragma unroll
  for (int group = 0; group < kColumns / 32; ++group) {
    u32 pairs[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float* const at = out + 16 * group + 8 * i + 2 * h;
      pairs[i] = ptx::pack_e4m3(at[0] * scale, at[1] * scale) |
                 ptx::pack_e4m3(at[4] * scale, at[5] * scale) << 16;
    }
    const u32 kept = upper ? pairs[1] : pairs[0];
    const u32 came = __shfl_xor_sync(0xffffffffu, upper ? pairs[0] : pairs[1], 2);
    const u32 mine = __byte_perm(kept, came, odd ? 0x7632 : 0x5410);
    const u32 other =
        __shfl_xor_sync(0xffffffffu, __byte_perm(kept, came, odd ? 0x5410 : 0x7632), 1);
    const u32 even_lanes = odd ? other : mine, odd_lanes = odd ? mine : other;
    const u32 low = __byte_perm(even_lanes, odd_lanes, 0x5410),
              high = __byte_perm(even_lanes, odd_lanes, 0x7632);
    if (exists)
      *reinterpret_cast<uint2*>(row + 32 * group + 8 * lane) =
          make_uint2(upper ? high : low, upper ? low : high);
  }
}

}  // namespace heddle::sm90
