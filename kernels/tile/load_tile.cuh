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

}  // namespace heddle::tile
