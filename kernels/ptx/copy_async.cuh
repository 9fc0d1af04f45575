// Asynchronous copies of 16 bytes, or a word, from global to shared memory, by each thread (sm_80
// and later).
#pragma once

#include "types.cuh"

namespace heddle::ptx {

/// Copies 16 bytes, or writes 16 zero bytes where `valid` is false (nothing is read then).
HEDDLE_DEVICE void copy_async_16(u32 shared, const void* global, bool valid) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared), "l"(global),
               "r"(valid ? 16 : 0)
               : "memory");
}

/// The same of what is read once: the second-level cache gives its lines away before others.
HEDDLE_DEVICE void copy_async_16_once(u32 shared, const void* global, bool valid) {
  u64 policy;
  asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  asm volatile("cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2, %3;" ::"r"(shared),
               "l"(global), "r"(valid ? 16 : 0), "l"(policy)
               : "memory");
}

HEDDLE_DEVICE void copy_async_4(u32 shared, const float* global) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(shared), "l"(global) : "memory");
}

HEDDLE_DEVICE void copy_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }

/// Waits until at most `kPending` committed groups of this thread are under way.
template <int kPending>
HEDDLE_DEVICE void copy_async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

/// Once the thread's copies so far have landed, one arrival at the barrier, which expects it.
HEDDLE_DEVICE void copy_async_arrive(u32 barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(barrier) : "memory");
}

}  // namespace heddle::ptx
