// Clusters: blocks that run at the same time on neighbouring processors, and reach into each
// other's shared memory. Addresses in another block are of the cluster's window, which holds every
// block's own.
#pragma once

#include "types.cuh"

namespace heddle::ptx {

/// Which block of the cluster this is; its blocks follow one another in the grid.
HEDDLE_DEVICE u32 cluster_rank() {
  u32 rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}

/// Waits for all threads of the cluster; what they wrote to shared memory before is visible then.
HEDDLE_DEVICE void cluster_sync() {
  asm volatile(
      "barrier.cluster.arrive.release.aligned;\n"
      "barrier.cluster.wait.acquire.aligned;" ::
          : "memory");
}

/// Where what lies at `shared` here lies in the block of that rank.
HEDDLE_DEVICE u32 address_in(u32 shared, u32 rank) {
  u32 address;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(address) : "r"(shared), "r"(rank));
  return address;
}

/// Arrives on a barrier of any block of the cluster, after what this thread has read: no fence is
/// asked for, which would wait for all that was written to global memory, over 1000 cycles. What is
/// written goes by cluster_store, which arrives for itself.
HEDDLE_DEVICE void cluster_arrive(u32 barrier) {
  asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(barrier) : "memory");
}

/// Writes 16 bytes to any block of the cluster; `barrier`, of the same block, counts them.
HEDDLE_DEVICE void cluster_store(u32 address, u32 barrier, const u32 (&words)[4]) {
  asm volatile(
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [%0], {%2,%3,%4,%5}, "
      "[%1];" ::"r"(address),
      "r"(barrier), "r"(words[0]), "r"(words[1]), "r"(words[2]), "r"(words[3])
      : "memory");
}
HEDDLE_DEVICE void cluster_store(u32 address, u32 barrier, const u32 (&words)[2]) {
  asm volatile(
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v2.b32 [%0], {%2,%3}, "
      "[%1];" ::"r"(address),
      "r"(barrier), "r"(words[0]), "r"(words[1])
      : "memory");
}

}  // namespace heddle::ptx
