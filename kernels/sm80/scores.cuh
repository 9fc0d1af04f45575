// Fragments and score arithmetic shared by the general forward and backward kernels.
#pragma once

#include "../attention/dropout.cuh"
#include "../attention/exponents.cuh"
#include "../attention/score_functions.cuh"
#include "../attention/visible.cuh"
#include "../ptx/math.cuh"
#include "../tile/fragment.cuh"
#include "../tile/planes.cuh"
#include "tile_load.cuh"

namespace heddle::sm80 {

using attention::Dropout;
using attention::KeyInterval;
using attention::kLn2;
using attention::kLog2E;
using tile::PlaneFragment;

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

/// Column groups of a fragment as one row of values (tile/fragment.cuh).
template <int kGroups>
HEDDLE_DEVICE float (&flat(float (&groups)[kGroups][4]))[4 * kGroups] {
  return reinterpret_cast<float(&)[4 * kGroups]>(groups);
}

/// Whether the block mask, if there is one, has the 128 x 128 block of (row, column) computed. A
/// tile lies in one block: its sides divide 128.
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
template <typename T, class Tile>
HEDDLE_DEVICE void load_row_fragment(u32 tile, int row, int k, PlaneFragment<T>& a) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int plane = 0; plane < Tile::kPlanes; ++plane)
    ptx::load_matrix_x4(
        tile + plane * Tile::kPlaneBytes + Tile::chunk_offset(row + lane % 16, 2 * k + lane / 16),
        a[plane]);
}

/// B fragments of rows `row` .. `row`+15 as the columns of B (two groups of 8), k slice `k` of the
/// tile's columns: the second operand of X Y^T.
template <typename T, class Tile>
HEDDLE_DEVICE void load_transposed_operand(u32 tile, int row, int k, PlaneFragment<T>& b) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int plane = 0; plane < Tile::kPlanes; ++plane)
    ptx::load_matrix_x4(
        tile + plane * Tile::kPlaneBytes +
            Tile::chunk_offset(row + lane / 16 * 8 + lane % 8, 2 * k + lane / 8 % 2),
        b[plane]);
}

/// B fragments of columns `column` .. `column`+15 (two groups of 8), k running over the 16 rows
/// from `row`: the second operand of X Y.
template <typename T, class Tile>
HEDDLE_DEVICE void load_operand(u32 tile, int row, int column, PlaneFragment<T>& b) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int plane = 0; plane < Tile::kPlanes; ++plane)
    ptx::load_matrix_x4_transposed(tile + plane * Tile::kPlaneBytes +
                                       Tile::chunk_offset(row + lane % 16, column / 8 + lane / 16),
                                   b[plane]);
}

/// d (16 x 8*kGroups) += A B over kSlices of 16: `load_a(k, a)` gives A's slice k, `load_b(n, k,
/// b)` B's in column groups 2n and 2n + 1. kTransposed: rounded as B^T A^T is.
template <typename T, int kGroups, int kSlices, bool kDots, bool kTransposed = false, class LoadA,
          class LoadB>
HEDDLE_DEVICE void multiply(float (&d)[kGroups][4], const LoadA& load_a, const LoadB& load_b) {
  if constexpr (tile::Planes<T>::kCount == 1) {
#pragma unroll
    for (int k = 0; k < kSlices; ++k) {
      PlaneFragment<T> a;
      load_a(k, a);
#pragma unroll
      for (int n = 0; n < kGroups / 2; ++n) {
        PlaneFragment<T> b;
        load_b(n, k, b);
        ptx::mma_m16n8k16<T>(d[2 * n], a[0], b[0][0], b[0][1]);
        ptx::mma_m16n8k16<T>(d[2 * n + 1], a[0], b[0][2], b[0][3]);
      }
    }
  } else {
    // As many columns at once as sums beside d find registers; A is read again for each.
    constexpr int kUnrolled = kSlices > 8 ? 2 : 4;  // more would fetch fragments nothing can hold
    constexpr int kAtOnce = kGroups < 16 ? min_of(kGroups, 4) : 2;
    constexpr int kStep = 2;  // slices that the tensor core sums
#pragma unroll
    for (int first = 0; first < kGroups; first += kAtOnce) {
      tile::PlaneSums<T, kAtOnce> sums;
#pragma unroll kUnrolled
      for (int k = 0; k < kSlices; ++k) {
        if (k % kStep == 0)
          sums.clear_after(d +
                           (k > 0 ? min_of(first, kGroups - kAtOnce) : max_of(first - kAtOnce, 0)));
        PlaneFragment<T> a;
        load_a(k, a);
#pragma unroll
        for (int n = 0; n < kAtOnce && first + n < kGroups; n += 2) {
          PlaneFragment<T> b;
          load_b((first + n) / 2, k, b);
          sums.template multiply<kTransposed>(n, a, b);
        }
        if (k % kStep != kStep - 1 && k != kSlices - 1) continue;
        const bool one = k % kStep == 0;
        const float lacking = kDots ? one ? tile::kDotsLack<1> : tile::kDotsLack<2>
                              : one ? tile::kSumsLack<1>
                                    : tile::kSumsLack<2>;
#pragma unroll
        for (int n = 0; n < kAtOnce && first + n < kGroups; ++n)
          sums.add_to(n, d[first + n], lacking);
      }
    }
  }
}

/// d (16 x 8*kGroups) += A rows from `row` of tile `a` times (rows 0.. of tile `b`)^T over kSlices
/// of 16; kTransposed as of multiply.
template <typename T, int kGroups, int kSlices, class TileA, class TileB, bool kTransposed = false>
HEDDLE_DEVICE void multiply_transposed(float (&d)[kGroups][4], u32 a, int row, u32 b) {
  multiply<T, kGroups, kSlices, true, kTransposed>(
      d, [&](int k, PlaneFragment<T>& left) { load_row_fragment<T, TileA>(a, row, k, left); },
      [&](int n, int k, PlaneFragment<T>& right) {
        load_transposed_operand<T, TileB>(b, 16 * n, k, right);
      });
}

/// d (16 x 8*kGroups) += x (16 x 8*kInner, sums of an earlier product, as an operand of T) times
/// tile `b`.
template <typename T, int kGroups, int kInner, class TileB>
HEDDLE_DEVICE void multiply_sums(float (&d)[kGroups][4], const float (&x)[kInner][4], u32 b) {
  multiply<T, kGroups, kInner / 2, false>(
      d,
      [&](int k, PlaneFragment<T>& left) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const float* pair = &x[2 * k + i / 2][2 * (i % 2)];
          if constexpr (tile::Planes<T>::kCount == 1)
            left[0][i] = ptx::pack<T>(pair[0], pair[1]);
          else
            tile::split_pair(pair[0], pair[1], left, i);
        }
      },
      [&](int n, int k, PlaneFragment<T>& right) {
        load_operand<T, TileB>(b, 16 * k, 16 * n, right);
      });
}

/// Writes the warp's 16 rows (from `row` of the tile) of sums, rounded, to rows first_row + row..
/// of global memory below row_end: 16-bit rows through `tile` in shared memory, so that they leave
/// in 16-byte pieces; f32 ones at once, four lanes filling a sector of 32. The sums are of columns
/// from `first_column` on, the first of a box; what goes beyond kColumns is dropped.
template <typename T, class Tile, int kColumns, bool kAligned, int kGroups>
HEDDLE_DEVICE void store_rows(u32 tile, int row, const float (&sums)[kGroups][4], float factor,
                              T* base, i64 stride, int first_row, int row_end,
                              int first_column = 0) {
  const int lane = threadIdx.x % 32;
  if constexpr (is_same<T, float>) {
#pragma unroll
    for (int n = 0; n < kGroups; ++n) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int at = first_row + row + lane / 4 + 8 * half,
                  column = first_column + 8 * n + 2 * (lane % 4);
        if (at >= row_end) continue;
        T* target = base + at * stride + column;
        const float x = sums[n][2 * half] * factor, y = sums[n][2 * half + 1] * factor;
        if constexpr (kAligned) {
          if (column < kColumns) *reinterpret_cast<float2*>(target) = make_float2(x, y);
        } else {
          if (column < kColumns) target[0] = x;
          if (column + 1 < kColumns) target[1] = y;
        }
      }
    }
  } else {
    tile += first_column / tile::kBoxColumns * Tile::kBoxBytes;
#pragma unroll
    for (int n = 0; n < kGroups; ++n) {
#pragma unroll
      for (int half = 0; half < 2; ++half)
        ptx::store_shared(tile + Tile::chunk_offset(row + lane / 4 + 8 * half, n) + 4 * (lane % 4),
                          ptx::pack<T>(sums[n][2 * half] * factor, sums[n][2 * half + 1] * factor));
    }
    __syncwarp();
    constexpr int kChunks = min_of(ceil_div(kColumns, 8), kGroups);
    for (int n = lane; n < 16 * kChunks; n += 32) {
      const int r = row + n / kChunks, chunk = n % kChunks, column = first_column + 8 * chunk;
      if (first_row + r >= row_end || column >= kColumns) continue;
      u32 words[4];
      ptx::load_shared(tile + Tile::chunk_offset(r, chunk), words);
      T* target = base + (first_row + r) * stride + column;
      if constexpr (kAligned) {
        *reinterpret_cast<uint4*>(target) = make_uint4(words[0], words[1], words[2], words[3]);
      } else {
#pragma unroll
        for (int i = 0; i < 8; ++i) {
          if (column + i < kColumns)
            target[i].bits = static_cast<u16>(words[i / 2] >> 16 * (i % 2));
        }
      }
    }
  }
}

}  // namespace heddle::sm80
