// mbarrier: a counter in shared memory that threads arrive on and the copy engine adds bytes to.
// A barrier is 8 bytes; `barrier` is its shared-window address. A phase completes when all expected
// arrivals and all expected bytes are in; `parity` is the low bit of the number of the phase.
#pragma once

#include "types.cuh"

namespace heddle::ptx {

HEDDLE_DEVICE void mbarrier_init(u32 barrier, u32 arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}

/// Makes initialised barriers visible to the copy engine and to the cluster; then synchronise.
HEDDLE_DEVICE void mbarrier_init_fence() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

HEDDLE_DEVICE void mbarrier_arrive(u32 barrier) {
  asm volatile("mbarrier.arrive.release.cta.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

/// One arrival that also announces `bytes` the copy engine will deliver in this phase.
HEDDLE_DEVICE void mbarrier_arrive_expect_tx(u32 barrier, u32 bytes) {
  asm volatile("mbarrier.arrive.expect_tx.release.cta.shared::cta.b64 _, [%0], %1;" ::"r"(barrier),
               "r"(bytes)
               : "memory");
}

#if __CUDA_ARCH__ >= 900
#define HEDDLE_MBARRIER_WAIT "try_wait"
#else
#define HEDDLE_MBARRIER_WAIT "test_wait"
#endif

/// True once the phase of the given parity has completed; from sm_90 on suspends the thread for a
/// while first.
HEDDLE_DEVICE bool mbarrier_try_wait(u32 barrier, u32 parity) {
  u32 done;
  asm volatile(
      "{\n.reg .pred p;\n"
      "mbarrier." HEDDLE_MBARRIER_WAIT
      ".parity.acquire.cta.shared::cta.b64 p, [%1], %2;\n"
      "selp.b32 %0, 1, 0, p;\n}"
      : "=r"(done)
      : "r"(barrier), "r"(parity)
      : "memory");
  return done != 0;
}

HEDDLE_DEVICE void mbarrier_wait(u32 barrier, u32 parity) {
  while (!mbarrier_try_wait(barrier, parity)) {
  }
}

}  // namespace heddle::ptx
