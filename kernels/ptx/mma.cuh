// Matrix products of one warp, m16n8k16, 16-bit elements and f32 sums (sm_80 and later).
// A fragment (16 x 16): register 0 rows lane/4, columns 2*(lane%4)..+1; 1 rows +8; 2 columns +8;
// 3 both. B fragment (16 x 8): register 0 k = 2*(lane%4)..+1, column lane/4; 1 k + 8. Sums: 0, 1
// row lane/4, columns 2*(lane%4)..+1; 2, 3 row + 8.
#pragma once

#include "types.cuh"

namespace heddle::ptx {

template <typename T>
HEDDLE_DEVICE void mma_m16n8k16(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) {
  if constexpr (is_same<T, bf16>) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
        "{%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  } else {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
        "{%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }
}

/// A word of each lane of an 8 x 8 matrix of 16-bit elements, row lane/4, columns 2*(lane%4)..+1:
/// that of the matrix turned.
HEDDLE_DEVICE u32 turn_matrix(u32 word) {
  u32 turned;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(turned) : "r"(word));
  return turned;
}

}  // namespace heddle::ptx
