// The order in which persistent blocks take query tiles, and what a tile's work is.
#pragma once

#include "../ptx/shared.cuh"
#include "../ptx/sync.cuh"
#include "forward_arguments.cuh"

namespace heddle::attention {

/// One query tile of one head and the key tiles it meets, [key_begin, key_end).
struct WorkItem {
  i32 q_tile, head, batch;
  i32 key_begin, key_end;
};

/// Position `index` of the order as (query tile, flat head).
HEDDLE_DEVICE void place_in_order(const TileOrder& order, int heads, int index, int& q_tile,
                                  int& head) {
  const int per_section = order.section * order.q_tiles;
  const int section = index / per_section;
  const int within = index - section * per_section;
  const int section_heads = min_of(order.section, heads - section * order.section);
  const int row = within / section_heads;
  q_tile = order.q_tiles - 1 - row;
  head = section * order.section + (within - row * section_heads);
}

/// The calling block's successive positions in the order; one thread uses it.
struct TileStream {
  const TileOrder& order;
  i32 round = 0;
  i32 index;

  HEDDLE_DEVICE explicit TileStream(const TileOrder& order)
      : order(order), index(static_cast<i32>(blockIdx.x)) {}

  HEDDLE_DEVICE bool valid() const { return index < order.total; }

  HEDDLE_DEVICE void advance() {
    const i32 blocks = static_cast<i32>(gridDim.x);
    if (order.counter != nullptr) {
      index = blocks + atomicAdd(order.counter, 1);
      // Every block draws exactly one invalid ticket; the one who draws the last restores the zero.
      if (index == order.total + blocks - 1) *order.counter = 0;
      return;
    }
    ++round;
    const i32 place = static_cast<i32>(blockIdx.x);
    index = round * blocks + (order.snake && round % 2 == 1 ? blocks - 1 - place : place);
  }
};

}  // namespace heddle::attention
