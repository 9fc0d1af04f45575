// kernels/ptx/copy_async.cuh.
#pragma once

#include "types.cuh"

namespace heddle::ptx {

HEDDLE_DEVICE void copy_async_16(u32 shared, const void* global, bool valid) {
  emulator::copy_async(shared, global, 16, valid);
}
HEDDLE_DEVICE void copy_async_16_once(u32 shared, const void* global, bool valid) {
  emulator::copy_async(shared, global, 16, valid);
}
HEDDLE_DEVICE void copy_async_4(u32 shared, const float* global) {
  emulator::copy_async(shared, global, 4, true);
}
HEDDLE_DEVICE void copy_async_commit() { emulator::copy_async_commit(); }
template <int kPending>
HEDDLE_DEVICE void copy_async_wait() {
  emulator::copy_async_wait(kPending);
}
HEDDLE_DEVICE void copy_async_arrive(u32 barrier) { emulator::copy_async_arrive(barrier); }

}  // namespace heddle::ptx
