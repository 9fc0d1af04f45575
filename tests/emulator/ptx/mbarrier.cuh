// kernels/ptx/mbarrier.cuh.
#pragma once

#include "types.cuh"

namespace heddle::ptx {

HEDDLE_DEVICE void mbarrier_init(u32 barrier, u32 arrivals) {
  emulator::mbarrier_init(barrier, arrivals);
}
HEDDLE_DEVICE void mbarrier_init_fence() {}
HEDDLE_DEVICE void mbarrier_arrive(u32 barrier) { emulator::mbarrier_arrive(barrier); }
HEDDLE_DEVICE void mbarrier_arrive_expect_tx(u32 barrier, u32 bytes) {
  emulator::mbarrier_arrive(barrier, bytes);
}
HEDDLE_DEVICE bool mbarrier_try_wait(u32 barrier, u32 parity) {
  return emulator::mbarrier_try_wait(barrier, parity);
}
HEDDLE_DEVICE void mbarrier_wait(u32 barrier, u32 parity) {
  while (!mbarrier_try_wait(barrier, parity)) {
  }
}

}  // namespace heddle::ptx
