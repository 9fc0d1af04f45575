// Where the rows of one (batch, head) lie, by how their operand is stored (problem::Storage). What
// loads rows is told by one of these, and knows of no storage: a new one is a struct here.
#pragma once

#include "operand.cuh"

namespace heddle::attention {

/// Rows apart by a stride; a ragged sequence's begin where its offset says.
template <typename T>
struct DenseRows {
  static constexpr bool kInPages = false;
  const T* base;
  i64 stride;

  DenseRows() = default;
  HEDDLE_DEVICE DenseRows(const Tensor& tensor, int batch, int head)
      : base(head_pointer<const T>(tensor, batch, head)), stride(tensor.stride[2]) {}
  HEDDLE_DEVICE i32 block_of(int) const { return 0; }
  HEDDLE_DEVICE static constexpr bool exists(i32) { return true; }
  HEDDLE_DEVICE bool are_in_one_block(int, int) const { return true; }
  HEDDLE_DEVICE i64 apart() const { return stride; }
  HEDDLE_DEVICE int within(int row) const { return row; }
  HEDDLE_DEVICE const T* at(int row, i32) const { return base + row * stride; }
  HEDDLE_DEVICE const T* operator()(int row) const { return base + row * stride; }
};

/// Rows in blocks: first the block that holds a row is looked up, then the row found in it. The
/// table lies in device memory, unchecked: rows in a block that does not exist are zeros, and not
/// read.
template <typename T>
struct PagedRows {
  static constexpr bool kInPages = true;
  const T* base;
  const i32* blocks;
  i64 stride, block_stride, table_stride;
  int log_rows, block_count;

  PagedRows() = default;
  HEDDLE_DEVICE PagedRows(const Tensor& container, const Pages& pages, int batch, int head)
      : base(head_pointer<const T>(container, 0, head)),
        blocks(head_pointer<const i32>(pages.table, batch, 0)),
        stride(container.stride[2]),
        block_stride(container.stride[0]),
        table_stride(pages.table.stride[2]),
        log_rows(pages.log_rows),
        block_count(pages.blocks) {}
  /// -1 of one that does not exist.
  HEDDLE_DEVICE i32 block_of(int row) const {
    const i32 block = blocks[(row >> log_rows) * table_stride];
    return static_cast<u32>(block) < static_cast<u32>(block_count) ? block : -1;
  }
  HEDDLE_DEVICE static bool exists(i32 block) { return block >= 0; }
  HEDDLE_DEVICE bool are_in_one_block(int first, int count) const {
    return first >> log_rows == (first + count - 1) >> log_rows;
  }
  HEDDLE_DEVICE i64 apart() const { return stride; }
  /// Where in its block a row lies.
  HEDDLE_DEVICE int within(int row) const { return row & ((1 << log_rows) - 1); }
  HEDDLE_DEVICE const T* at(int row, i32 block) const {
    return base + block * block_stride + within(row) * stride;
  }
  /// Null of a row that does not exist.
  HEDDLE_DEVICE const T* operator()(int row) const {
    const i32 block = block_of(row);
    return exists(block) ? at(row, block) : nullptr;
  }
};

/// The last rows of so many: row s lies where row s % rows of a dense tensor does. Its block is the
/// turn of the ring that it belongs to, named by the turn's first row.
template <typename T>
struct RingRows {
  static constexpr bool kInPages = false;
  DenseRows<T> dense;
  int rows;

  RingRows() = default;
  HEDDLE_DEVICE RingRows(const Tensor& tensor, const Pages& pages, int batch, int head)
      : dense(tensor, batch, head), rows(pages.ring_rows) {}
  HEDDLE_DEVICE i32 block_of(int row) const { return row / rows * rows; }
  HEDDLE_DEVICE static constexpr bool exists(i32) { return true; }
  HEDDLE_DEVICE bool are_in_one_block(int first, int count) const {
    return first % rows + count <= rows;
  }
  HEDDLE_DEVICE i64 apart() const { return dense.stride; }
  HEDDLE_DEVICE const T* at(int row, i32 block) const { return dense(row - block); }
  HEDDLE_DEVICE const T* operator()(int row) const { return at(row, block_of(row)); }
};

/// Those of keys or values.
template <typename T, KeyRows kRows>
HEDDLE_DEVICE auto stored_rows(const Tensor& tensor, const Pages& pages, int batch, int head) {
  if constexpr (kRows == KeyRows::paged) {
    return PagedRows<T>(tensor, pages, batch, head);
  } else if constexpr (kRows == KeyRows::ring) {
    return RingRows<T>(tensor, pages, batch, head);
  } else {
    return DenseRows<T>(tensor, batch, head);
  }
}

}  // namespace heddle::attention
