// kernels/ptx/mma.cuh.
#pragma once

#include "types.cuh"

namespace heddle::ptx {

template <typename T>
HEDDLE_DEVICE void mma_m16n8k16(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) {
  emulator::mma_m16n8k16(is_same<T, bf16> ? emulator::Operand::bf16 : emulator::Operand::f16, d, a,
                         b0, b1);
}

HEDDLE_DEVICE u32 turn_matrix(u32 word) {
  const int lane = static_cast<int>(threadIdx.x % 32), row = lane / 4, first = 2 * (lane % 4);
  u32 halves[2];
  for (int n = 0; n < 2; ++n) {
    const u32 from = __shfl_sync(0xffffffffu, word, 4 * (first + n) + row / 2);
    halves[n] = from >> (row % 2 * 16) & 0xffff;
  }
  return halves[0] | halves[1] << 16;
}

}  // namespace heddle::ptx
