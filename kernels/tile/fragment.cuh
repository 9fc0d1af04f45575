// How a warp group holds a 64 x N accumulator: warp w owns rows 16w .. 16w+15, and a thread's value
// i lies in row 16w + lane/4 + 8*((i/2)%2), column 8*(i/4) + 2*(lane%4) + i%2. A row lives in the
// four lanes of a quad, so a row reduction is a loop over registers and two shuffles.
#pragma once

#include "../ptx/math.cuh"
#include "../ptx/shared.cuh"
#include "../ptx/types.cuh"
#include "shared_tile.cuh"

namespace heddle::tile {

/// Row within the 64, for row half h (0 or 1), of the calling thread.
HEDDLE_DEVICE int fragment_row(int thread, int half) {
  return (thread / 32) % 4 * 16 + thread % 32 / 4 + 8 * half;
}

/// Column of value 0 of the calling thread; value i is fragment_column_step(i) further.
HEDDLE_DEVICE int fragment_column(int thread) { return 2 * (thread % 4); }
HEDDLE_DEVICE constexpr int fragment_column_step(int i) { return 8 * (i / 4) + i % 2; }
HEDDLE_DEVICE constexpr int fragment_half(int i) { return (i / 2) % 2; }

HEDDLE_DEVICE float quad_max(float x) {
  x = ptx::max(x, __shfl_xor_sync(0xffffffffu, x, 1));
  return ptx::max(x, __shfl_xor_sync(0xffffffffu, x, 2));
}

HEDDLE_DEVICE float quad_sum(float x) {
  x += __shfl_xor_sync(0xffffffffu, x, 1);
  return x + __shfl_xor_sync(0xffffffffu, x, 2);
}

/// The lanes that share a row: a quad; or, of sums that lie the other way round, those at the same
/// place of theirs.
struct LanesOfQuad {
  HEDDLE_DEVICE static float max(float x) { return quad_max(x); }
  HEDDLE_DEVICE static float sum(float x) { return quad_sum(x); }
};
struct LanesAcrossQuads {
  HEDDLE_DEVICE static float max(float x) {
#pragma unroll
    for (int apart = 4; apart < 32; apart *= 2)
      x = ptx::max(x, __shfl_xor_sync(0xffffffffu, x, apart));
    return x;
  }
  HEDDLE_DEVICE static float sum(float x) {
#pragma unroll
    for (int apart = 4; apart < 32; apart *= 2) x += __shfl_xor_sync(0xffffffffu, x, apart);
    return x;
  }
};

/// Values kBy further take the place of each, the first ones that of the last: a loop that is not
/// unrolled sees all of an array in registers at the same places.
template <int kBy, typename T, int kCount>
HEDDLE_DEVICE void rotate(T (&values)[kCount]) {
  T first[kBy];
#pragma unroll
  for (int i = 0; i < kBy; ++i) first[i] = values[i];
#pragma unroll
  for (int i = 0; i < kCount; ++i)
    values[i] = i + kBy < kCount ? values[i + kBy] : first[i + kBy - kCount];
}

/// An accumulator rounded to T is, in place, the A operand of a product over its columns.
template <typename T, int kN>
HEDDLE_DEVICE void pack_fragment(u32 (&a)[kN / 16][4], const float (&d)[kN / 2]) {
#pragma unroll
  for (int k = 0; k < kN / 16; ++k)
#pragma unroll
    for (int i = 0; i < 4; ++i) a[k][i] = ptx::pack<T>(d[8 * k + 2 * i], d[8 * k + 2 * i + 1]);
}

/// The same as two planes of T: the values rounded, and what that leaves, each times `factor`.
template <typename T, int kN>
HEDDLE_DEVICE void split_fragment(u32 (&a)[2][kN / 16][4], const float (&d)[kN / 2], float factor) {
#pragma unroll
  for (int k = 0; k < kN / 16; ++k) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float x = d[8 * k + 2 * i] * factor, y = d[8 * k + 2 * i + 1] * factor;
      a[0][k][i] = ptx::pack<T>(x, y);
      float near_x, near_y;
      ptx::unpack<T>(a[0][k][i], near_x, near_y);
      a[1][k][i] = ptx::pack<T>(x - near_x, y - near_y);
    }
  }
}

/// Writes slice k (16 columns from column 16k) of the warp's 16 rows, packed as an A fragment, to
/// `tile` starting at `row` (a multiple of 16, the warp's own rows). Conflict-free.
template <class Tile>
HEDDLE_DEVICE void store_slice(u32 tile, int row, int k, const u32 (&a)[4]) {
  const int lane = threadIdx.x % 32;
  ptx::store_matrix_x4(tile + Tile::chunk_offset(row + lane % 16, 2 * k + lane / 16), a[0], a[1],
                       a[2], a[3]);
}

}  // namespace heddle::tile
