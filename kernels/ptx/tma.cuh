// The bulk copy engine (TMA): tiles of tensors described by a TensorMap, and linear runs of bytes.
// Loads complete on an mbarrier (`barrier` must expect the bytes: a box always counts in full, also
// where it lies outside the tensor and reads as zero). Stores and reductions clip at the tensor's
// edge and complete in bulk groups. One thread issues; shared tiles are aligned to 1024 bytes.
#pragma once

#include "types.cuh"

namespace heddle::ptx {

HEDDLE_DEVICE void tma_prefetch(const TensorMap* map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

HEDDLE_DEVICE void tensor_map_replace_address(TensorMap* map, const void* address) {
  asm volatile("tensormap.replace.tile.global_address.global.b1024.b64 [%0], %1;" ::"l"(map),
               "l"(address)
               : "memory");
}

/// Extent of dimension 1, the rows.
HEDDLE_DEVICE void tensor_map_replace_rows(TensorMap* map, u32 rows) {
  asm volatile("tensormap.replace.tile.global_dim.global.b1024.b32 [%0], 1, %1;" ::"l"(map),
               "r"(rows)
               : "memory");
}

/// After a map was written: makes its contents visible to the copies of later kernels.
HEDDLE_DEVICE void tensor_map_release() {
  asm volatile("fence.proxy.tensormap::generic.release.gpu;" ::: "memory");
}

/// Before a map is used that an earlier kernel wrote: makes its contents visible to the copy
/// engine.
HEDDLE_DEVICE void tensor_map_acquire(const TensorMap* map) {
  asm volatile("fence.proxy.tensormap::generic.acquire.gpu [%0], 128;" ::"l"(map) : "memory");
}

HEDDLE_DEVICE void tma_load_4d(u32 shared, const TensorMap* map, u32 barrier, i32 c0, i32 c1,
                               i32 c2, i32 c3) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes"
      " [%0], [%1, {%3,%4,%5,%6}], [%2];" ::"r"(shared),
      "l"(map), "r"(barrier), "r"(c0), "r"(c1), "r"(c2), "r"(c3)
      : "memory");
}

/// What a copy says of what it reads: the second-level cache is to let go of it before all else.
HEDDLE_DEVICE u64 evict_first() {
  u64 policy;
  asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}

/// The same with such a policy.
HEDDLE_DEVICE void tma_load_4d(u32 shared, const TensorMap* map, u32 barrier, i32 c0, i32 c1,
                               i32 c2, i32 c3, u64 policy) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint"
      " [%0], [%1, {%3,%4,%5,%6}], [%2], %7;" ::"r"(shared),
      "l"(map), "r"(barrier), "r"(c0), "r"(c1), "r"(c2), "r"(c3), "l"(policy)
      : "memory");
}

/// To the same place of all blocks of the cluster that `ranks` has bits of; the barrier at the same
/// place of each counts the bytes.
HEDDLE_DEVICE void tma_load_4d_to(u32 ranks, u32 shared, const TensorMap* map, u32 barrier, i32 c0,
                                  i32 c1, i32 c2, i32 c3, u64 policy) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes"
      ".multicast::cluster.L2::cache_hint [%0], [%1, {%3,%4,%5,%6}], [%2], %7, %8;" ::"r"(shared),
      "l"(map), "r"(barrier), "r"(c0), "r"(c1), "r"(c2), "r"(c3),
      "h"(static_cast<unsigned short>(ranks)), "l"(policy)
      : "memory");
}

HEDDLE_DEVICE void tma_store_4d(const TensorMap* map, u32 shared, i32 c0, i32 c1, i32 c2, i32 c3) {
  asm volatile(
      "cp.async.bulk.tensor.4d.global.shared::cta.bulk_group [%0, {%2,%3,%4,%5}], [%1];" ::"l"(map),
      "r"(shared), "r"(c0), "r"(c1), "r"(c2), "r"(c3)
      : "memory");
}

/// Linear copy of `bytes` (a multiple of 16, both ends 16-byte aligned) into shared memory.
HEDDLE_DEVICE void bulk_load(u32 shared, const void* global, u32 bytes, u32 barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
          "r"(shared),
      "l"(global), "r"(bytes), "r"(barrier)
      : "memory");
}

/// Adds `bytes` / 4 f32 values from shared to global memory.
HEDDLE_DEVICE void bulk_reduce_add_f32(float* global, u32 shared, u32 bytes) {
  asm volatile(
      "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;" ::"l"(global),
      "r"(shared), "r"(bytes)
      : "memory");
}

HEDDLE_DEVICE void bulk_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }

/// Waits until at most `kPending` groups still read shared memory: their tiles may be overwritten.
template <int kPending>
HEDDLE_DEVICE void bulk_wait_read() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(kPending) : "memory");
}

/// Waits until at most `kPending` groups are unfinished: the others have landed in global memory.
template <int kPending>
HEDDLE_DEVICE void bulk_wait() {
  asm volatile("cp.async.bulk.wait_group %0;" ::"n"(kPending) : "memory");
}

}  // namespace heddle::ptx
