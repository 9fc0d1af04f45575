// wgmma of e4m3 elements: D (64 x N, f32 registers) = A (64 x 32) * B (32 x N) + D. Both operands
// have their k index contiguous; A may come from registers. Its sums keep about 14 bits.
#pragma once

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

/// Two numbers as e4m3, rounded to nearest even within +-448, the first in the low byte.
HEDDLE_DEVICE u32 pack_e4m3(float low, float high) {
  u16 pair;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(high), "f"(low));
  return pair;
}

/// The two numbers of the low bytes of a word, as f16, which holds all of them.
HEDDLE_DEVICE u32 unpack_e4m3(u32 pair) {
  u32 halves;
  asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(halves) : "h"(static_cast<u16>(pair)));
  return halves;
}

}  // namespace heddle::ptx
