// The order in which persistent blocks take query tiles, and what a tile's work is.
#pragma once

#include "../ptx/types.cuh"
#include "forward_arguments.h"

namespace heddle::sm90 {

/// Position `index` of the order as (query tile, flat head).
HEDDLE_DEVICE void place_in_order(const TileOrder& order, int heads, int index, int& q_tile,
                                  int& head) {
  const int per_group = order.head_group * order.q_tiles;
  const int group = index / per_group;
  const int within = index - group * per_group;
  const int group_heads = min_of(order.head_group, heads - group * order.head_group);
  const int row = within / group_heads;
  q_tile = order.q_tiles - 1 - row;
  head = group * order.head_group + (within - row * group_heads);
}

/// The calling block's successive positions in the order; one thread uses it. Blocks of a cluster
/// have the same: they draw none.
template <int kRanks = 1>
class TileStream {
 public:
  HEDDLE_DEVICE explicit TileStream(const TileOrder& order)
      : order_(order), index_(static_cast<i32>(blockIdx.x) / kRanks) {}

  HEDDLE_DEVICE bool valid() const { return index_ < order_.total; }
  HEDDLE_DEVICE i32 index() const { return index_; }

  HEDDLE_DEVICE void take_next() {
    const i32 blocks = static_cast<i32>(gridDim.x) / kRanks;
    if (kRanks > 1 || order_.counter == nullptr) {
      index_ += blocks;
      return;
    }
    // A block's first draw follows the tile of its own number.
    const i32 ticket = index_ < blocks ? first_draw() : draw();
    index_ = blocks + ticket;
    // Every block draws exactly one invalid ticket. Who draws the last gives the counter back: the
    // next launch, whose claim may be the same, begins anew.
    if (ticket == order_.total - 1) *order_.counter = 0;
  }

 private:
  HEDDLE_DEVICE i32 first_draw() {
    // Who comes first replaces whatever the workspace held.
    for (u64 seen = 0; seen >> kTicketBits != order_.claim >> kTicketBits;) {
      const u64 found = atomicCAS(order_.counter, seen, order_.claim + 1);
      if (found == seen) return 0;
      seen = found;
    }
    return draw();
  }

  HEDDLE_DEVICE i32 draw() {
    return static_cast<i32>(atomicAdd(order_.counter, u64{1}) & ((u64{1} << kTicketBits) - 1));
  }

  const TileOrder& order_;
  i32 index_;
};

}  // namespace heddle::sm90
