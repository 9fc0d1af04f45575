// Named barriers, fences, warp election, register reallocation, dependent launches.
#pragma once

#include "types.cuh"

namespace heddle::ptx {

/// Waits at hardware barrier `id` (1..15; 0 is __syncthreads) until `threads` threads are there.
HEDDLE_DEVICE void barrier_sync(u32 id, u32 threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

/// Counts the warp in at barrier `id` without waiting.
HEDDLE_DEVICE void barrier_arrive(u32 id, u32 threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

/// Orders this thread's ordinary shared-memory writes before later reads by wgmma or the copy
/// engine. Every writing thread runs it, before the barrier.
HEDDLE_DEVICE void fence_proxy_async_shared() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

/// The same for global memory that the copy engine will read.
HEDDLE_DEVICE void fence_proxy_async_global() {
  asm volatile("fence.proxy.async.global;" ::: "memory");
}

/// threadIdx.x, read again: what is worked out of it is not held in registers until it is wanted.
HEDDLE_DEVICE u32 thread_anew() {
  u32 thread;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
  return thread;
}

/// One lane of a converged warp, the same each time.
HEDDLE_DEVICE bool elect_one() {
  u32 elected;
  asm volatile(
      "{\n.reg .pred p;\n"
      "elect.sync _|p, 0xffffffff;\n"
      "selp.b32 %0, 1, 0, p;\n}"
      : "=r"(elected));
  return elected != 0;
}

/// Gives registers back to the pool. Every warp of the warp group executes it; ptxas ignores it
/// unless the kernel carries __launch_bounds__(threads, 1).
template <int kRegisters>
HEDDLE_DEVICE void registers_shrink() {
  static_assert(kRegisters % 8 == 0 && kRegisters >= 24 && kRegisters <= 256);
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

/// Takes registers from the pool, waiting until they are free.
template <int kRegisters>
HEDDLE_DEVICE void registers_grow() {
  static_assert(kRegisters % 8 == 0 && kRegisters >= 24 && kRegisters <= 256);
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

/// Waits until the launch this one depends on has completed and its writes are visible; a no-op
/// without programmatic dependent launch, of which there is none before sm_90.
HEDDLE_DEVICE void grid_dependency_wait() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

/// Lets dependent launches begin their prologue; before sm_90 there are none.
HEDDLE_DEVICE void grid_dependents_launch() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

/// Adds to a counter in global memory; what this thread wrote before is visible to whoever sees it.
HEDDLE_DEVICE void atomic_add_release(i32* counter, i32 value) {
  asm volatile("red.release.gpu.global.add.s32 [%0], %1;" ::"l"(counter), "r"(value) : "memory");
}

HEDDLE_DEVICE i32 load_acquire(const i32* counter) {
  i32 value;
  asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(value) : "l"(counter) : "memory");
  return value;
}

}  // namespace heddle::ptx
