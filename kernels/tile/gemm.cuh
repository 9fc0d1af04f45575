// Matrix products of one warp group over whole tiles. Asynchronous: bracket the accumulators with
// wgmma_fence before, wgmma_commit after, and touch them only after wgmma_wait.
#pragma once

#include "../ptx/wgmma.cuh"
#include "shared_tile.cuh"

namespace heddle::tile {

/// d (64 x kN) = a * b, or += when `accumulate`; k runs over `kSlices` slices of 16.
template <typename T, int kN, int kSlices, class A, class B>
HEDDLE_DEVICE void issue_product(float (&d)[kN / 2], const A& a, const B& b, bool accumulate) {
#pragma unroll
  for (int k = 0; k < kSlices; ++k)
    ptx::Wgmma<kN>::template ss<T, A::kMajor, B::kMajor>(d, a.slice(k), b.slice(k),
                                                         accumulate || k > 0);
}

/// The same with a in registers: slice k of 16 columns is the fragment a[k].
template <typename T, int kN, int kSlices, class B>
HEDDLE_DEVICE void issue_product(float (&d)[kN / 2], const u32 (&a)[kSlices][4], const B& b,
                                 bool accumulate) {
#pragma unroll
  for (int k = 0; k < kSlices; ++k)
    ptx::Wgmma<kN>::template rs<T, B::kMajor>(d, a[k], b.slice(k), accumulate || k > 0);
}

}  // namespace heddle::tile
