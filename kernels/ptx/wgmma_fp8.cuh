// wgmma of e4m3 elements: D (64 x N, f32 registers) = A (64 x 32) * B (32 x N) + D. Both operands
// have their k index contiguous; A may come from registers. Its sums keep about 14 bits.
#pragma once

#include "e4m3.cuh"
#include "wgmma.cuh"

namespace heddle::ptx {

/// The instruction for one width N, as Wgmma.
template <int kN>
struct WgmmaE4m3;

#define HEDDLE_WGMMA_E4M3(N, I0, I1, I2, I3, I4, I5)                                              \
  template <>                                                                                     \
  struct WgmmaE4m3<N> {                                                                           \
    HEDDLE_DEVICE static void ss(float* d, u64 a, u64 b, u32 accumulate) {                        \
      asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " I2                                         \
                   ", 0;\n"                                                                       \
                   "wgmma.mma_async.sync.aligned.m64n" #N                                         \
                   "k32.f32.e4m3.e4m3"                                                            \
                   " {" HEDDLE_WGMMA_D##N "}, " I0 ", " I1 ", p, 1, 1;\n}"                        \
                   : HEDDLE_WGMMA_IO##N                                                           \
                   : "l"(a), "l"(b), "r"(accumulate));                                            \
    }                                                                                             \
    HEDDLE_DEVICE static void rs(float* d, const u32* a, u64 b, u32 accumulate) {                 \
      asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " I5                                         \
                   ", 0;\n"                                                                       \
                   "wgmma.mma_async.sync.aligned.m64n" #N                                         \
                   "k32.f32.e4m3.e4m3"                                                            \
                   " {" HEDDLE_WGMMA_D##N "}, {" I0 "," I1 "," I2 "," I3 "}, " I4 ", p, 1, 1;\n}" \
                   : HEDDLE_WGMMA_IO##N                                                           \
                   : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(accumulate));        \
    }                                                                                             \
  };

HEDDLE_WGMMA_E4M3(64, "%32", "%33", "%34", "%35", "%36", "%37")
HEDDLE_WGMMA_E4M3(128, "%64", "%65", "%66", "%67", "%68", "%69")

}  // namespace heddle::ptx
