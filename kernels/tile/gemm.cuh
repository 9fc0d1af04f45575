// Matrix products of one warp group over whole tiles. Asynchronous: bracket the accumulators with
// wgmma_fence before, wgmma_commit after, and touch them only after wgmma_wait.
#pragma once

#include "../ptx/wgmma.cuh"
#include "shared_tile.cuh"

namespace heddle::tile {

/// d (64 x kN) = a * b, or += when `accumulate`; k runs over `kSlices` slices of 16. Operands of
/// kPlanes planes are sums of as many tiles, each some 2^11 below the one before: the products that
/// matter are taken, the smallest first.
template <typename T, int kN, int kSlices, int kPlanes = 1, class A, class B>
requires requires { A::kMajor; }
HEDDLE_DEVICE void issue_product(float (&d)[kN / 2], const A& a, const B& b, bool accumulate) {
#pragma unroll
  for (int rank = kPlanes - 1; rank >= 0; --rank) {
#pragma unroll
    for (int plane = 0; plane <= rank; ++plane) {
      const A left = a.plane(plane);
      const B right = b.plane(rank - plane);
#pragma unroll
      for (int k = 0; k < kSlices; ++k)
        ptx::Wgmma<kN>::template ss<T, A::kMajor, B::kMajor>(
            d, left.slice(k), right.slice(k),
            accumulate || rank < kPlanes - 1 || plane > 0 || k > 0);
    }
  }
}

/// The same with a in registers: slice k of 16 columns is the fragment a[k] of each plane.
template <typename T, int kN, int kPlanes, int kSlices, class B>
HEDDLE_DEVICE void issue_product(float (&d)[kN / 2], const u32 (&a)[kPlanes][kSlices][4],
                                 const B& b, bool accumulate) {
#pragma unroll
  for (int rank = kPlanes - 1; rank >= 0; --rank) {
#pragma unroll
    for (int plane = 0; plane <= rank; ++plane) {
      const B right = b.plane(rank - plane);
#pragma unroll
      for (int k = 0; k < kSlices; ++k)
        ptx::Wgmma<kN>::template rs<T, B::kMajor>(
            d, a[plane][k], right.slice(k), accumulate || rank < kPlanes - 1 || plane > 0 || k > 0);
    }
  }
}

/// The same of one plane.
template <typename T, int kN, int kSlices, class B>
HEDDLE_DEVICE void issue_product(float (&d)[kN / 2], const u32 (&a)[kSlices][4], const B& b,
                                 bool accumulate) {
#pragma unroll
  for (int k = 0; k < kSlices; ++k)
    ptx::Wgmma<kN>::template rs<T, B::kMajor>(d, a[k], b.slice(k), accumulate || k > 0);
}

}  // namespace heddle::tile
