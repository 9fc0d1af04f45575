// Fragments and score arithmetic shared by the general forward and backward kernels.
#pragma once

#include "../attention/dropout.cuh"
#include "../attention/operand.cuh"
#include "../ptx/math.cuh"
#include "../ptx/mma.cuh"
#include "../tile/fragment.cuh"
#include "tile_load.cuh"

namespace heddle::sm80 {

using attention::Dropout;
using attention::KeyInterval;

inline constexpr float kLog2E = 1.4426950408889634f;
inline constexpr float kLn2 = 0.6931471805599453f;
inline constexpr float kMinusInfinity = -__builtin_bit_cast(float, 0x7f800000u);

/// What a score expression may read.
struct Cell {
  float dot;
  int row, column, batch, head, q_length, kv_length;
  const attention::Tensor* loads;
};

/// What its derivative may read besides: dL/d(score).
struct GradientCell : Cell {
  float gradient;
};

/// Whether the block mask, if there is one, has the 128 x 128 block of (row, column) computed.
template <class Config>
HEDDLE_DEVICE bool block_is_computed(const attention::ForwardParameters& p, int batch, int head,
                                     int row, int column) {
  if constexpr (!Config::kBlockMask) {
    return true;
  } else {
    const int block = column / 128;
    const u8 bits =
        *attention::element_pointer<const u8>(p.block_mask, batch, head, row / 128, block / 8);
    return (bits >> block % 8 & 1) != 0;
  }
}

/// A fragment: the warp's 16 rows from `row`, columns 16k .. 16k+15.
template <class Tile>
HEDDLE_DEVICE void load_row_fragment(u32 tile, int row, int k, u32 (&a)[4]) {
  const int lane = threadIdx.x % 32;
  ptx::load_matrix_x4(tile + Tile::chunk_offset(row + lane % 16, 2 * k + lane / 16), a);
}

/// B fragments of rows `row` .. `row`+15 as the columns of B (two groups of 8), k slice `k` of the
/// tile's columns: the second operand of X Y^T.
template <class Tile>
HEDDLE_DEVICE void load_transposed_operand(u32 tile, int row, int k, u32 (&b)[4]) {
  const int lane = threadIdx.x % 32;
  ptx::load_matrix_x4(
      tile + Tile::chunk_offset(row + lane / 16 * 8 + lane % 8, 2 * k + lane / 8 % 2), b);
}

/// B fragments of columns `column` .. `column`+15 (two groups of 8), k running over the 16 rows
/// from `row`: the second operand of X Y.
template <class Tile>
HEDDLE_DEVICE void load_operand(u32 tile, int row, int column, u32 (&b)[4]) {
  const int lane = threadIdx.x % 32;
  ptx::load_matrix_x4_transposed(tile + Tile::chunk_offset(row + lane % 16, column / 8 + lane / 16),
                                 b);
}

/// d (16 x 8*kGroups) += A rows from `row` of tile `a` times (rows 0.. of tile `b`)^T over kSlices
/// of 16.
template <typename T, int kGroups, int kSlices, class TileA, class TileB>
HEDDLE_DEVICE void multiply_transposed(float (&d)[kGroups][4], u32 a, int row, u32 b) {
#pragma unroll
  for (int k = 0; k < kSlices; ++k) {
    u32 left[4];
    load_row_fragment<TileA>(a, row, k, left);
#pragma unroll
    for (int n = 0; n < kGroups / 2; ++n) {
      u32 right[4];
      load_transposed_operand<TileB>(b, 16 * n, k, right);
      ptx::mma_m16n8k16<T>(d[2 * n], left, right[0], right[1]);
      ptx::mma_m16n8k16<T>(d[2 * n + 1], left, right[2], right[3]);
    }
  }
}

/// d (16 x 8*kGroups) += x (16 x 8*kInner, sums of an earlier product, rounded to T) times tile
/// `b`.
template <typename T, int kGroups, int kInner, class TileB>
HEDDLE_DEVICE void multiply_rounded(float (&d)[kGroups][4], const float (&x)[kInner][4], u32 b) {
#pragma unroll
  for (int k = 0; k < kInner / 2; ++k) {
    u32 left[4];
#pragma unroll
    for (int i = 0; i < 4; ++i)
      left[i] = ptx::pack<T>(x[2 * k + i / 2][2 * (i % 2)], x[2 * k + i / 2][2 * (i % 2) + 1]);
#pragma unroll
    for (int n = 0; n < kGroups / 2; ++n) {
      u32 right[4];
      load_operand<TileB>(b, 16 * k, 16 * n, right);
      ptx::mma_m16n8k16<T>(d[2 * n], left, right[0], right[1]);
      ptx::mma_m16n8k16<T>(d[2 * n + 1], left, right[2], right[3]);
    }
  }
}

/// Loads key or value rows, through the page table if there is one.
template <class Config, bool kPaged, int kColumns, class Tile, int kThreads>
HEDDLE_DEVICE void load_keys(u32 tile, const attention::Tensor& tensor,
                             const attention::Tensor& table, int log_page, int batch, int head,
                             int first, int end) {
  using T = typename Config::Element;
  if constexpr (kPaged) {
    load_rows<Tile, kColumns, kThreads, Config::kAligned, T>(
        tile, PagedRows<T>{tensor, table, batch, head, log_page}, first, end);
  } else {
    load_rows<Tile, kColumns, kThreads, Config::kAligned, T>(
        tile, DenseRows<T>(tensor, batch, head), first, end);
  }
}

/// Writes the warp's 16 rows (from `row` of the tile) of sums, rounded, to rows first_row + row..
/// of global memory below row_end, through `tile` in shared memory so that rows leave in 16-byte
/// pieces.
template <typename T, class Tile, int kColumns, bool kAligned, int kGroups>
HEDDLE_DEVICE void store_rows(u32 tile, int row, const float (&sums)[kGroups][4], float factor,
                              T* base, i64 stride, int first_row, int row_end) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int n = 0; n < kGroups; ++n) {
#pragma unroll
    for (int half = 0; half < 2; ++half)
      ptx::store_shared(tile + Tile::chunk_offset(row + lane / 4 + 8 * half, n) + 4 * (lane % 4),
                        ptx::pack<T>(sums[n][2 * half] * factor, sums[n][2 * half + 1] * factor));
  }
  __syncwarp();
  constexpr int kChunks = ceil_div(kColumns, 8);
  for (int n = lane; n < 16 * kChunks; n += 32) {
    const int r = row + n / kChunks, chunk = n % kChunks;
    if (first_row + r >= row_end) continue;
    u32 words[4];
    ptx::load_shared(tile + Tile::chunk_offset(r, chunk), words);
    T* target = base + (first_row + r) * stride + 8 * chunk;
    if constexpr (kAligned) {
      *reinterpret_cast<uint4*>(target) = make_uint4(words[0], words[1], words[2], words[3]);
    } else {
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        if (8 * chunk + i < kColumns)
          target[i].bits = static_cast<u16>(words[i / 2] >> 16 * (i % 2));
      }
    }
  }
}

}  // namespace heddle::sm80
