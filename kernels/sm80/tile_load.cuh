// Rows of global memory to swizzled tiles in shared memory, by all threads of a block.
#pragma once

#include "../attention/stored_rows.cuh"
#include "../ptx/copy_async.cuh"
#include "../ptx/global.cuh"
#include "../ptx/shared.cuh"
#include "../tile/planes.cuh"

namespace heddle::sm80 {

using attention::DenseRows;

/// load_rows of f32, which passes through registers and is cut into planes there.
template <class Tile, int kColumns, int kThreads, bool kAligned, class Rows>
HEDDLE_DEVICE void load_rows_as_planes(u32 planes, const Rows& rows, int first_row, int row_end) {
  constexpr int kChunks = ceil_div(kColumns, 16) * 2;
#pragma unroll 2
  for (int n = threadIdx.x; n < Tile::kRows * kChunks; n += kThreads) {
    const int row = n / kChunks, chunk = n % kChunks;
    bool row_valid = first_row + row < row_end;
    const float* source = rows(row_valid ? first_row + row : first_row < row_end ? first_row : 0);
    if constexpr (Rows::kInPages) row_valid = row_valid && source != nullptr;
    source += 8 * chunk;
    u32 x[8];
#pragma unroll
    for (int i = 0; i < 8; i += kAligned ? 4 : 1)
      ptx::load_if<kAligned ? 16 : 4>(row_valid && 8 * chunk + i < kColumns, source + i, x + i);
    u32 words[Tile::kPlanes][4];
#pragma unroll
    for (int i = 0; i < 4; ++i)
      tile::split_pair(__uint_as_float(x[2 * i]), __uint_as_float(x[2 * i + 1]), words, i);
#pragma unroll
    for (int plane = 0; plane < Tile::kPlanes; ++plane)
      ptx::store_shared(planes + plane * Tile::kPlaneBytes + Tile::chunk_offset(row, chunk),
                        words[plane]);
  }
}

/// Fills rows 0 .. Tile::kRows-1 and columns 0 .. round_up(kColumns, 16)-1 of `tile` from rows
/// first_row onwards; what lies at or past `row_end` or kColumns, or in no block, is zero and never
/// read, so that NaN beyond a sequence cannot leak. With kAligned every row starts on 16 bytes and
/// is a multiple of them long: the copies are then asynchronous and must be committed and waited
/// for.
template <class Tile, int kColumns, int kThreads, bool kAligned, typename T, class Rows>
HEDDLE_DEVICE void load_rows(u32 tile, const Rows& rows, int first_row, int row_end) {
  if constexpr (is_same<T, float>) {
    load_rows_as_planes<Tile, kColumns, kThreads, kAligned>(tile, rows, first_row, row_end);
  } else {
    constexpr int kChunks = ceil_div(kColumns, 16) * 2;
    for (int n = threadIdx.x; n < Tile::kRows * kChunks; n += kThreads) {
      const int row = n / kChunks, chunk = n % kChunks;
      bool row_valid = first_row + row < row_end;
      const T* source = rows(row_valid ? first_row + row : first_row < row_end ? first_row : 0);
      if constexpr (Rows::kInPages) row_valid = row_valid && source != nullptr;
      const u32 target = tile + Tile::chunk_offset(row, chunk);
      if constexpr (kAligned) {
        const bool valid = row_valid && 8 * chunk < kColumns;
        ptx::copy_async_16(target, valid ? source + 8 * chunk : source, valid);
      } else {
        u32 words[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int column = 8 * chunk + 2 * i;
          const u32 low = row_valid && column < kColumns ? source[column].bits : 0;
          const u32 high = row_valid && column + 1 < kColumns ? source[column + 1].bits : 0;
          words[i] = low | high << 16;
        }
        ptx::store_shared(target, words);
      }
    }
  }
}

}  // namespace heddle::sm80
