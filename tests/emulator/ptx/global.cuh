// kernels/ptx/global.cuh.
#pragma once

#include "types.cuh"

namespace heddle::ptx {

template <int kBytes>
HEDDLE_DEVICE void load_if(bool exists, const void* from, u32* to) {
  for (int n = 0; n < (kBytes + 3) / 4; ++n) to[n] = 0;
  if (exists) __builtin_memcpy(to, emulator::global(from, kBytes, kBytes), kBytes);
}

HEDDLE_DEVICE void add_atomically(float* to, float x) {
  u32* const word = reinterpret_cast<u32*>(to);
  u32 was = __atomic_load_n(word, __ATOMIC_RELAXED);
  while (!__atomic_compare_exchange_n(word, &was, __float_as_uint(__uint_as_float(was) + x), false,
                                      __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
  }
}
HEDDLE_DEVICE void reduce_add(float* to, float x, float y, float z, float w) {
  emulator::global(to, 16, 16);
  add_atomically(to, x), add_atomically(to + 1, y);
  add_atomically(to + 2, z), add_atomically(to + 3, w);
}

HEDDLE_DEVICE void store_release(u64* flag, u64 value) {
  emulator::global(flag, sizeof *flag, sizeof *flag);
  __atomic_store_n(flag, value, __ATOMIC_RELEASE);
}
HEDDLE_DEVICE u64 load_acquire(const u64* flag) {
  emulator::give_way();
  return __atomic_load_n(flag, __ATOMIC_ACQUIRE);
}
HEDDLE_DEVICE u64 exchange_if_acquire(u64* flag, u64 expected, u64 next) {
  emulator::give_way();
  __atomic_compare_exchange_n(flag, &expected, next, false, __ATOMIC_ACQUIRE, __ATOMIC_ACQUIRE);
  return expected;
}

}  // namespace heddle::ptx
