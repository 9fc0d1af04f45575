// kernels/ptx/mma.cuh.
#pragma once

#include "types.cuh"

namespace heddle::ptx {

template <typename T>
HEDDLE_DEVICE void mma_m16n8k16(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) {
  emulator::mma_m16n8k16(is_same<T, bf16> ? emulator::Operand::bf16 : emulator::Operand::f16, d, a,
                         b0, b1);
}

}  // namespace heddle::ptx
