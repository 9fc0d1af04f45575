// Sizes of tiles and barriers in shared memory: plain numbers, for kernels and for the host that
// launches them.
#pragma once

namespace heddle::tile {

inline constexpr int kBoxColumns = 64;
inline constexpr int kLineBytes = 128;
inline constexpr int kTileAlignment = 1024;

constexpr int boxes_of(int columns) { return (columns + kBoxColumns - 1) / kBoxColumns; }

/// Of planes of 16-bit elements one after the other, the columns of each split into boxes.
constexpr int tile_bytes(int rows, int columns, int planes = 1) {
  return planes * boxes_of(columns) * rows * kLineBytes;
}

/// Of a ring's full and empty barriers.
constexpr int ring_bytes(int stages) { return 2 * stages * 8; }

}  // namespace heddle::tile
