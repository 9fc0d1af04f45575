// kernels/ptx/sync.cuh. Fences have no meaning here: what a thread writes, the others see.
#pragma once

#include "types.cuh"

namespace heddle::ptx {

HEDDLE_DEVICE void barrier_sync(u32 id, u32 threads) { emulator::barrier(id, threads, true); }
HEDDLE_DEVICE void barrier_arrive(u32 id, u32 threads) { emulator::barrier(id, threads, false); }

HEDDLE_DEVICE void fence_proxy_async_shared() {}
HEDDLE_DEVICE void fence_proxy_async_global() {}

HEDDLE_DEVICE u32 thread_anew() { return threadIdx.x; }

HEDDLE_DEVICE bool elect_one() {
  emulator::exchange(0xffffffff, 0);
  return emulator::lane() == 0;
}

template <int kRegisters>
HEDDLE_DEVICE void registers_shrink() {
  static_assert(kRegisters % 8 == 0 && kRegisters >= 24 && kRegisters <= 256);
}
template <int kRegisters>
HEDDLE_DEVICE void registers_grow() {
  static_assert(kRegisters % 8 == 0 && kRegisters >= 24 && kRegisters <= 256);
}

// Launches follow one another here.
HEDDLE_DEVICE void grid_dependency_wait() {}
HEDDLE_DEVICE void grid_dependents_launch() {}

HEDDLE_DEVICE void atomic_add_release(i32* counter, i32 value) {
  emulator::global(counter, sizeof *counter, sizeof *counter);
  __atomic_fetch_add(counter, value, __ATOMIC_RELEASE);
}

HEDDLE_DEVICE i32 load_acquire(const i32* counter) {
  emulator::give_way();
  return __atomic_load_n(counter, __ATOMIC_ACQUIRE);
}

}  // namespace heddle::ptx
