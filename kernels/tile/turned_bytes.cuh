// Four words turned: of each the same byte side by side. What codes of 8 bits need whose rows the
// tensor core wants as columns.
#pragma once

#include "../ptx/types.cuh"

namespace heddle::tile {

/// turned[i] has byte i of a, b, c and d, from its lowest on.
HEDDLE_DEVICE void turn_bytes(u32 a, u32 b, u32 c, u32 d, u32 (&turned)[4]) {
  const u32 ab_low = __byte_perm(a, b, 0x5140), ab_high = __byte_perm(a, b, 0x7362);
  const u32 cd_low = __byte_perm(c, d, 0x5140), cd_high = __byte_perm(c, d, 0x7362);
  turned[0] = __byte_perm(ab_low, cd_low, 0x5410);
  turned[1] = __byte_perm(ab_low, cd_low, 0x7632);
  turned[2] = __byte_perm(ab_high, cd_high, 0x5410);
  turned[3] = __byte_perm(ab_high, cd_high, 0x7632);
}

}  // namespace heddle::tile
