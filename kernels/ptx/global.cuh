// Accesses to global memory that C++ has no words for: loads under a condition without a branch,
// sums of four at once, flags between blocks.
#pragma once

#include "types.cuh"

namespace heddle::ptx {

/// Memory that nothing writes while the kernel runs, or zeros: the loads of several calls are in
/// flight together, where `if` would let the compiler wait for one before the next. 16, 8, 4, 2 or
/// 1 bytes, aligned to their number.
template <int kBytes>
HEDDLE_DEVICE void load_if(bool exists, const void* from, u32* to) {
  const u32 wanted = exists;
  if constexpr (kBytes == 16) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.u32 p, %5, 0;\n"
        "mov.b32 %0, 0;\nmov.b32 %1, 0;\nmov.b32 %2, 0;\nmov.b32 %3, 0;\n"
        "@p ld.global.nc.v4.u32 {%0, %1, %2, %3}, [%4];\n}"
        : "=&r"(to[0]), "=&r"(to[1]), "=&r"(to[2]), "=&r"(to[3])
        : "l"(from), "r"(wanted));
  } else if constexpr (kBytes == 8) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.u32 p, %3, 0;\n"
        "mov.b32 %0, 0;\nmov.b32 %1, 0;\n"
        "@p ld.global.nc.v2.u32 {%0, %1}, [%2];\n}"
        : "=&r"(to[0]), "=&r"(to[1])
        : "l"(from), "r"(wanted));
  } else if constexpr (kBytes == 4) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.u32 p, %2, 0;\n"
        "mov.b32 %0, 0;\n@p ld.global.nc.u32 %0, [%1];\n}"
        : "=&r"(to[0])
        : "l"(from), "r"(wanted));
  } else {
    u16 half;
    if constexpr (kBytes == 2)
      asm volatile(
          "{\n.reg .pred p;\nsetp.ne.u32 p, %2, 0;\n"
          "mov.b16 %0, 0;\n@p ld.global.nc.u16 %0, [%1];\n}"
          : "=&h"(half)
          : "l"(from), "r"(wanted));
    else
      asm volatile(
          "{\n.reg .pred p;\nsetp.ne.u32 p, %2, 0;\n"
          "mov.b16 %0, 0;\n@p ld.global.nc.u8 %0, [%1];\n}"
          : "=&h"(half)
          : "l"(from), "r"(wanted));
    to[0] = half;
  }
}

/// Adds to four neighbouring f32, 16-byte aligned, in one request (sm_90 and later).
HEDDLE_DEVICE void reduce_add(float* to, float x, float y, float z, float w) {
  asm volatile("red.relaxed.gpu.global.add.v4.f32 [%0], {%1,%2,%3,%4};" ::"l"(to), "f"(x), "f"(y),
               "f"(z), "f"(w)
               : "memory");
}

/// Says to other blocks that what this one wrote before is there, its barriers included.
HEDDLE_DEVICE void store_release(u64* flag, u64 value) {
  asm volatile("st.release.gpu.global.u64 [%0], %1;" ::"l"(flag), "l"(value) : "memory");
}
/// Of a value that was stored as above, what was written before it is seen.
HEDDLE_DEVICE u64 load_acquire(const u64* flag) {
  u64 value;
  asm volatile("ld.acquire.gpu.global.u64 %0, [%1];" : "=l"(value) : "l"(flag) : "memory");
  return value;
}
/// The flag, and `next` in its place if it was `expected`. Where that was stored as above, what was
/// written before it is seen.
HEDDLE_DEVICE u64 exchange_if_acquire(u64* flag, u64 expected, u64 next) {
  u64 was;
  asm volatile("atom.acquire.gpu.global.cas.b64 %0, [%1], %2, %3;"
               : "=l"(was)
               : "l"(flag), "l"(expected), "l"(next)
               : "memory");
  return was;
}

}  // namespace heddle::ptx
