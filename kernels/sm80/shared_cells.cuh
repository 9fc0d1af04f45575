// Products of cells that warps which share 16 rows compute for each other: each some of them, which
// it leaves in shared memory. After a barrier they are there for all.
#pragma once

#include "../ptx/shared.cuh"
#include "../ptx/types.cuh"

namespace heddle::sm80 {

/// Groups of 8 columns of the 16 rows of warps number `row_warp`, of kGroups; a lane leaves what
/// the same lane of the other warps takes.
template <int kGroups>
struct SharedCells {
  u32 mine;

  HEDDLE_DEVICE SharedCells(u32 cells, int row_warp)
      : mine(cells + row_warp * kGroups * 512 + threadIdx.x % 32 * 16) {}

  HEDDLE_DEVICE void leave(int group, const float (&x)[4]) const {
    ptx::store_shared(mine + 512 * group, x[0], x[1], x[2], x[3]);
  }
  HEDDLE_DEVICE void take(int group, float (&x)[4]) const {
    ptx::load_shared(mine + 512 * group, x[0], x[1], x[2], x[3]);
  }
};

}  // namespace heddle::sm80
