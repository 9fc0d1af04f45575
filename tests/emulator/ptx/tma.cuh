// kernels/ptx/tma.cuh. What is written to a map is seen at once.
#pragma once

#include "types.cuh"

namespace heddle::ptx {

HEDDLE_DEVICE void tma_prefetch(const TensorMap*) {}
HEDDLE_DEVICE void tensor_map_replace_address(TensorMap* map, const void* address) {
  emulator::tensor_map_address(map, address);
}
HEDDLE_DEVICE void tensor_map_replace_rows(TensorMap* map, u32 rows) {
  emulator::tensor_map_rows(map, rows);
}
HEDDLE_DEVICE void tensor_map_release() {}
HEDDLE_DEVICE void tensor_map_acquire(const TensorMap*) {}

HEDDLE_DEVICE void tma_load_4d(u32 shared, const TensorMap* map, u32 barrier, i32 c0, i32 c1,
                               i32 c2, i32 c3) {
  emulator::tensor_load(shared, map, barrier, {c0, c1, c2, c3});
}
/// There is no cache.
HEDDLE_DEVICE u64 evict_first() { return 0; }
HEDDLE_DEVICE void tma_load_4d(u32 shared, const TensorMap* map, u32 barrier, i32 c0, i32 c1,
                               i32 c2, i32 c3, u64) {
  tma_load_4d(shared, map, barrier, c0, c1, c2, c3);
}
HEDDLE_DEVICE void tma_load_4d_to(u32 ranks, u32 shared, const TensorMap* map, u32 barrier, i32 c0,
                                  i32 c1, i32 c2, i32 c3, u64) {
  for (u32 rank = 0; ranks >> rank != 0; ++rank)
    if ((ranks >> rank & 1) != 0)
      emulator::tensor_load(emulator::cluster_address(shared, rank), map,
                            emulator::cluster_address(barrier, rank), {c0, c1, c2, c3});
}
HEDDLE_DEVICE void tma_store_4d(const TensorMap* map, u32 shared, i32 c0, i32 c1, i32 c2, i32 c3) {
  emulator::tensor_store(map, shared, {c0, c1, c2, c3});
}
HEDDLE_DEVICE void bulk_load(u32 shared, const void* global, u32 bytes, u32 barrier) {
  emulator::bulk_load(shared, global, bytes, barrier);
}
HEDDLE_DEVICE void bulk_reduce_add_f32(float* global, u32 shared, u32 bytes) {
  emulator::bulk_add(global, shared, bytes);
}

HEDDLE_DEVICE void bulk_commit() { emulator::bulk_commit(); }
/// Shared memory is read, and global memory written, in one go.
template <int kPending>
HEDDLE_DEVICE void bulk_wait_read() {
  emulator::bulk_wait(kPending);
}
template <int kPending>
HEDDLE_DEVICE void bulk_wait() {
  emulator::bulk_wait(kPending);
}

}  // namespace heddle::ptx
