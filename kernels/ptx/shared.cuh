// Shared-memory accesses by 32-bit address: plain, vector, and whole 8x8 matrices.
#pragma once

#include "types.cuh"

namespace heddle::ptx {

HEDDLE_DEVICE void store_shared(u32 address, u32 value) {
  asm volatile("st.shared.b32 [%0], %1;" ::"r"(address), "r"(value) : "memory");
}

HEDDLE_DEVICE void store_shared(u32 address, float value) {
  asm volatile("st.shared.f32 [%0], %1;" ::"r"(address), "f"(value) : "memory");
}

HEDDLE_DEVICE void store_shared(u32 address, const u32 (&value)[4]) {
  asm volatile("st.shared.v4.b32 [%0], {%1,%2,%3,%4};" ::"r"(address), "r"(value[0]), "r"(value[1]),
               "r"(value[2]), "r"(value[3])
               : "memory");
}

HEDDLE_DEVICE void store_shared(u32 address, u32 x, u32 y) {
  asm volatile("st.shared.v2.u32 [%0], {%1,%2};" ::"r"(address), "r"(x), "r"(y) : "memory");
}
HEDDLE_DEVICE void store_shared(u32 address, float x, float y) {
  asm volatile("st.shared.v2.f32 [%0], {%1,%2};" ::"r"(address), "f"(x), "f"(y) : "memory");
}

HEDDLE_DEVICE void store_shared(u32 address, float x, float y, float z, float w) {
  asm volatile("st.shared.v4.f32 [%0], {%1,%2,%3,%4};" ::"r"(address), "f"(x), "f"(y), "f"(z),
               "f"(w)
               : "memory");
}

HEDDLE_DEVICE u32 load_shared_u32(u32 address) {
  u32 value;
  asm volatile("ld.shared.b32 %0, [%1];" : "=r"(value) : "r"(address) : "memory");
  return value;
}

HEDDLE_DEVICE float load_shared_f32(u32 address) {
  float value;
  asm volatile("ld.shared.f32 %0, [%1];" : "=f"(value) : "r"(address) : "memory");
  return value;
}

HEDDLE_DEVICE void load_shared(u32 address, u32 (&value)[4]) {
  asm volatile("ld.shared.v4.b32 {%0,%1,%2,%3}, [%4];"
               : "=r"(value[0]), "=r"(value[1]), "=r"(value[2]), "=r"(value[3])
               : "r"(address)
               : "memory");
}

HEDDLE_DEVICE void load_shared(u32 address, u32& x, u32& y) {
  asm volatile("ld.shared.v2.b32 {%0,%1}, [%2];" : "=r"(x), "=r"(y) : "r"(address) : "memory");
}

HEDDLE_DEVICE void load_shared(u32 address, u32 (&value)[2]) {
  load_shared(address, value[0], value[1]);
}

HEDDLE_DEVICE void load_shared(u32 address, float& x, float& y) {
  asm volatile("ld.shared.v2.f32 {%0,%1}, [%2];" : "=f"(x), "=f"(y) : "r"(address) : "memory");
}

HEDDLE_DEVICE void load_shared(u32 address, float& x, float& y, float& z, float& w) {
  asm volatile("ld.shared.v4.f32 {%0,%1,%2,%3}, [%4];"
               : "=f"(x), "=f"(y), "=f"(z), "=f"(w)
               : "r"(address)
               : "memory");
}

/// Four 8x8 matrices of 16-bit elements. Lane l gives the address of row l%8 of matrix l/8; matrix
/// i arrives in register i, lane l holding elements 2*(l%4), 2*(l%4)+1 of row l/4.
HEDDLE_DEVICE void load_matrix_x4(u32 address, u32 (&m)[4]) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3])
               : "r"(address)
               : "memory");
}

/// The same with each matrix transposed on the way.
HEDDLE_DEVICE void load_matrix_x4_transposed(u32 address, u32 (&m)[4]) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3])
               : "r"(address)
               : "memory");
}

HEDDLE_DEVICE void store_matrix_x4(u32 address, u32 m0, u32 m1, u32 m2, u32 m3) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1,%2,%3,%4};" ::"r"(address),
               "r"(m0), "r"(m1), "r"(m2), "r"(m3)
               : "memory");
}

/// The same with each matrix transposed on the way.
HEDDLE_DEVICE void store_matrix_x4_transposed(u32 address, u32 m0, u32 m1, u32 m2, u32 m3) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1,%2,%3,%4};" ::"r"(address),
               "r"(m0), "r"(m1), "r"(m2), "r"(m3)
               : "memory");
}

/// Two matrices, each transposed on the way; lanes 0 to 15 give the addresses.
HEDDLE_DEVICE void store_matrix_x2_transposed(u32 address, u32 m0, u32 m1) {
  asm volatile("stmatrix.sync.aligned.m8n8.x2.trans.shared.b16 [%0], {%1,%2};" ::"r"(address),
               "r"(m0), "r"(m1)
               : "memory");
}

}  // namespace heddle::ptx
