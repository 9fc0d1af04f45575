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
    ++round_;
    const i32 place = static_cast<i32>(blockIdx.x);
    index_ = round_ * blocks + (order_.snake && round_ % 2 == 1 ? blocks - 1 - place : place);
  }

 private:
  const TileOrder& order_;
  i32 index_;
  i32 round_ = 0;
  i32 ticket_ = 0;
};

}  // namespace heddle::attention
