// Tiles of 16-bit elements in shared memory as the copy engine writes them and wgmma reads them:
// the columns split into boxes of 64 (128 bytes), box after box, each box `rows` lines of 128
// bytes, in which the 16-byte chunk c of row r sits at chunk c ^ (r % 8) (the 128-byte swizzle). So
// a box is a stack of 8-row atoms of 1024 bytes, and eight rows of one column fall into different
// banks.
#pragma once

#include "../ptx/types.cuh"
#include "../ptx/wgmma.cuh"
#include "tile_bytes.h"

namespace heddle::tile {

inline constexpr int kAtomBytes = 8 * kLineBytes;

template <int kRowCount, int kColumnCount>
struct SharedTile {
  static_assert(kRowCount % 8 == 0, "a swizzle atom has 8 rows");
  static constexpr int kRows = kRowCount;
  static constexpr int kColumns = kColumnCount;
  static constexpr int kBoxes = boxes_of(kColumnCount);
  static constexpr int kBoxBytes = kRowCount * kLineBytes;
  static constexpr int kBytes = kBoxes * kBoxBytes;

  /// Byte offset of the 16-byte chunk that holds columns 8*chunk .. 8*chunk+7 of `row`.
  HEDDLE_DEVICE static constexpr u32 chunk_offset(int row, int chunk) {
    return (chunk / 8) * kBoxBytes + row * kLineBytes + (((chunk % 8) ^ (row % 8)) * 16);
  }
};

/// kPlanes tiles one after the other, which a copy sees as one: the columns of each plane start a
/// box.
template <int kRowCount, int kColumnCount, int kPlanes>
struct PlanesOf
    : SharedTile<kRowCount,
                 kPlanes == 1 ? kColumnCount : kPlanes * round_up(kColumnCount, kBoxColumns)> {
  using Plane = SharedTile<kRowCount, kColumnCount>;
};

/// An address as descriptors of operands take it: within the block, where those of a cluster have
/// the block's rank above.
template <bool kOfCluster>
HEDDLE_DEVICE u32 operand_address(u32 shared) {
  constexpr u32 kWindow = 1 << 18;  // what descriptors reach
  return kOfCluster ? shared & (kWindow - 1) : shared;
}

/// Bits common to the descriptors of 128-byte swizzled operands: distances count in 16 bytes.
HEDDLE_DEVICE constexpr u64 swizzled_descriptor(u32 leading_bytes, u32 stride_bytes) {
  return (static_cast<u64>(1) << 62) | (static_cast<u64>(stride_bytes >> 4) << 32) |
         (static_cast<u64>(leading_bytes >> 4) << 16);
}

/// The tile as an operand whose k index runs along its columns: A (m x k) or B (n x k, transposed).
/// `row` (a multiple of 8) is where the operand's m or n index starts.
template <class Tile>
struct KMajor {
  static constexpr ptx::Major kMajor = ptx::Major::k;
  u64 descriptor;

  HEDDLE_DEVICE explicit KMajor(u32 tile, int row = 0)
      : descriptor(swizzled_descriptor(16, kAtomBytes) | ((tile + row * kLineBytes) >> 4)) {}

  /// The same part of the tile `plane` tiles further.
  HEDDLE_DEVICE KMajor plane(int plane) const {
    KMajor other(*this);
    other.descriptor += plane * Tile::kBytes >> 4;
    return other;
  }

  /// The slice of 16 k values that starts at column 16 * `k`. Within a line the swizzle follows the
  /// address bits, so a slice is a plain offset of 32 bytes.
  HEDDLE_DEVICE u64 slice(int k) const {
    return descriptor + (((k / 4) * Tile::kBoxBytes + (k % 4) * 32) >> 4);
  }
};

/// The tile as an operand whose k index runs along its rows: B (k x n) or A (k x m, transposed).
/// `column` is where the operand's m or n index starts: a multiple of 64, or of 8 where the operand
/// stays within one box.
template <class Tile>
struct MnMajor {
  static constexpr ptx::Major kMajor = ptx::Major::mn;
  u64 descriptor;

  HEDDLE_DEVICE explicit MnMajor(u32 tile, int column = 0)
      : descriptor(
            swizzled_descriptor(Tile::kBoxBytes, kAtomBytes) |
            ((tile + (column / kBoxColumns) * Tile::kBoxBytes + column % kBoxColumns * 2) >> 4)) {}

  /// The same part of the tile `plane` tiles further.
  HEDDLE_DEVICE MnMajor plane(int plane) const {
    MnMajor other(*this);
    other.descriptor += plane * Tile::kBytes >> 4;
    return other;
  }

  /// The slice of 16 k values that starts at row 16 * `k`.
  HEDDLE_DEVICE u64 slice(int k) const { return descriptor + ((k * 16 * kLineBytes) >> 4); }
};

}  // namespace heddle::tile
