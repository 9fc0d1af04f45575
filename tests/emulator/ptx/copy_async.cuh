// kernels/ptx/copy_async.cuh.
#pragma once

#include "types.cuh"

namespace heddle::ptx {

HEDDLE_DEVICE void copy_async_16(u32 shared, const void* global, bool valid) {
  emulator::copy_async(shared, global, valid);
}
HEDDLE_DEVICE void copy_async_commit() { emulator::copy_async_commit(); }
template <int kPending>
HEDDLE_DEVICE void copy_async_wait() {
  emulator::copy_async_wait(kPending);
}
HEDDLE_DEVICE void copy_async_arrive(u32 barrier) { emulator::copy_async_arrive(barrier); }

}  // namespace heddle::ptx
