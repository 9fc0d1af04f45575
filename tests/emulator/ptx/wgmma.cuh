// kernels/ptx/wgmma.cuh. Accumulators are written where they lie, while the group is waited for.
#pragma once

#include "types.cuh"

namespace heddle::ptx {

enum class Major : int { k = 0, mn = 1 };

HEDDLE_DEVICE void wgmma_fence() {}
HEDDLE_DEVICE void wgmma_commit() { emulator::group_products_commit(); }
template <int kPending>
HEDDLE_DEVICE void wgmma_wait() {
  emulator::group_products_wait(kPending);
}

template <int kCount>
HEDDLE_DEVICE void pin(float (&)[kCount]) {}

template <int kN>
struct Wgmma {
  static_assert(kN % 8 == 0 && kN >= 8 && kN <= 256);

  template <typename T, Major kA, Major kB>
  HEDDLE_DEVICE static void ss(float* d, u64 a, u64 b, u32 accumulate) {
    emulator::group_product(operand<T>(), kN, d, {nullptr, a, kA == Major::mn},
                            {nullptr, b, kB == Major::mn}, accumulate != 0);
  }
  template <typename T, Major kB>
  HEDDLE_DEVICE static void rs(float* d, const u32* a, u64 b, u32 accumulate) {
    emulator::group_product(operand<T>(), kN, d, {a, 0, false}, {nullptr, b, kB == Major::mn},
                            accumulate != 0);
  }

 private:
  template <typename T>
  static constexpr emulator::Operand operand() {
    return is_same<T, bf16> ? emulator::Operand::bf16 : emulator::Operand::f16;
  }
};

}  // namespace heddle::ptx
