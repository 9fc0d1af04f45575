// kernels/ptx/wgmma_fp8.cuh.
#pragma once

#include "e4m3.cuh"
#include "wgmma.cuh"

namespace heddle::ptx {

template <int kN>
struct WgmmaE4m3 {
  static_assert(kN == 64 || kN == 128);

  HEDDLE_DEVICE static void ss(float* d, u64 a, u64 b, u32 accumulate) {
    emulator::group_product(emulator::Operand::e4m3, kN, d, {nullptr, a, false},
                            {nullptr, b, false}, accumulate != 0);
  }
  HEDDLE_DEVICE static void rs(float* d, const u32* a, u64 b, u32 accumulate) {
    emulator::group_product(emulator::Operand::e4m3, kN, d, {a, 0, false}, {nullptr, b, false},
                            accumulate != 0);
  }
};

}  // namespace heddle::ptx
