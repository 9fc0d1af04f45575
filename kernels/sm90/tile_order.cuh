// The order in which persistent blocks take query tiles, and what a tile's work is.
#pragma once

#include "../ptx/types.cuh"
#include "forward_arguments.h"

namespace heddle::sm90 {

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

/// The calling block's successive positions in the order; one thread uses it. A position is asked
/// for well before it is needed, so that the atomic's latency passes under other work.
class TileStream {
 public:
  HEDDLE_DEVICE explicit TileStream(const TileOrder& order)
      : order_(order), index_(static_cast<i32>(blockIdx.x)) {}

  HEDDLE_DEVICE bool valid() const { return index_ < order_.total; }
  HEDDLE_DEVICE i32 index() const { return index_; }

  HEDDLE_DEVICE void request_next() {
    if (order_.counter != nullptr) ticket_ = atomicAdd(order_.counter, 1);
  }

  HEDDLE_DEVICE void take_next() {
    const i32 blocks = static_cast<i32>(gridDim.x);
    if (order_.counter != nullptr) {
      index_ = blocks + ticket_;
      // Every block draws exactly one invalid ticket; who draws the last restores the zero.
      if (index_ == order_.total + blocks - 1) *order_.counter = 0;
      return;
    }
    index_ += blocks;
  }

 private:
  const TileOrder& order_;
  i32 index_;
  i32 ticket_ = 0;
};

}  // namespace heddle::sm90
