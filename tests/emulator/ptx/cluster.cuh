// kernels/ptx/cluster.cuh.
#pragma once

#include "types.cuh"

namespace heddle::ptx {

HEDDLE_DEVICE u32 cluster_rank() { return emulator::here().rank; }
HEDDLE_DEVICE void cluster_sync() { emulator::cluster_sync(); }
HEDDLE_DEVICE u32 address_in(u32 shared, u32 rank) {
  return emulator::cluster_address(shared, rank);
}
HEDDLE_DEVICE void cluster_arrive(u32 barrier) { emulator::mbarrier_arrive(barrier); }
HEDDLE_DEVICE void cluster_store(u32 address, u32 barrier, const u32 (&words)[4]) {
  emulator::cluster_store(address, barrier, words, 4);
}
HEDDLE_DEVICE void cluster_store(u32 address, u32 barrier, const u32 (&words)[2]) {
  emulator::cluster_store(address, barrier, words, 2);
}

}  // namespace heddle::ptx
