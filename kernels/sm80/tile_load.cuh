// Rows of global memory to swizzled tiles in shared memory, by all threads of a block.
#pragma once

#include "../attention/operand.cuh"
#include "../ptx/copy_async.cuh"
#include "../ptx/shared.cuh"
#include "../tile/shared_tile.cuh"

namespace heddle::sm80 {

/// Where row r of one (batch, head) starts: rows apart by a stride, or found through a page table.
template <typename T>
struct DenseRows {
  const T* base;
  i64 stride;

  HEDDLE_DEVICE DenseRows(const attention::Tensor& tensor, int batch, int head)
      : base(attention::head_pointer<const T>(tensor, batch, head)), stride(tensor.stride[2]) {}
  HEDDLE_DEVICE const T* operator()(int row) const { return base + row * stride; }
};

template <typename T>
struct PagedRows {
  const attention::Tensor& container;
  const attention::Tensor& table;
  int batch, head, log_page;

  HEDDLE_DEVICE const T* operator()(int row) const {
    const i32 block = *attention::element_pointer<const i32>(table, batch, 0, row >> log_page, 0);
    return attention::element_pointer<const T>(container, 0, head, row & ((1 << log_page) - 1), 0) +
           block * container.stride[0];
  }
};

/// Fills rows 0 .. Tile::kRows-1 and columns 0 .. round_up(kColumns, 16)-1 of `tile` from rows
/// first_row onwards; what lies at or past `row_end` or kColumns is zero and never read, so that
/// NaN beyond a sequence cannot leak. With kAligned every row starts on 16 bytes and kColumns is a
/// multiple of 8: the copies are then asynchronous and must be committed and waited for.
template <class Tile, int kColumns, int kThreads, bool kAligned, typename T, class Rows>
HEDDLE_DEVICE void load_rows(u32 tile, const Rows& rows, int first_row, int row_end) {
  constexpr int kChunks = ceil_div(kColumns, 16) * 2;
  for (int n = threadIdx.x; n < Tile::kRows * kChunks; n += kThreads) {
    const int row = n / kChunks, chunk = n % kChunks;
    const bool row_valid = first_row + row < row_end;
    const T* source = rows(row_valid ? first_row + row : first_row < row_end ? first_row : 0);
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

}  // namespace heddle::sm80
