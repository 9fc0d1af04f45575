// Tiles fetched by the copy engine.
#pragma once

#include "../ptx/tma.cuh"
#include "shared_tile.cuh"

namespace heddle::tile {

/// Starts the copies of a tile's rows from `row` on, a box of 64 columns each; `barrier` counts
/// their bytes. One thread.
template <class Tile>
HEDDLE_DEVICE void load_tile(u32 shared, const TensorMap* map, u32 barrier, int row, int head,
                             int batch) {
#pragma unroll
  for (int box = 0; box < Tile::kBoxes; ++box)
    ptx::tma_load_4d(shared + box * Tile::kBoxBytes, map, barrier, box * kBoxColumns, row, head,
                     batch);
}

/// The same of `parts` tiles of planes, which have `share` columns each of a tensor's `columns`,
/// from share `first` on. The last box of a plane may reach beyond its share, into what no product
/// reads.
template <class Tile>
HEDDLE_DEVICE void load_shares(u32 shared, const TensorMap* map, u32 barrier, int columns,
                               int share, int first, int parts, int row, int head, int batch) {
  constexpr int kBoxes = Tile::Plane::kBoxes;
  const int plane_columns = round_up(columns, kBoxColumns);
#pragma unroll 1
  for (int part = 0; part < parts; ++part)
#pragma unroll 1
    for (int box = 0; box < Tile::kBoxes; ++box)
      ptx::tma_load_4d(
          shared + part * Tile::kBytes + box * Tile::kBoxBytes, map, barrier,
          box / kBoxes * plane_columns + (first + part) * share + box % kBoxes * kBoxColumns, row,
          head, batch);
}

}  // namespace heddle::tile
