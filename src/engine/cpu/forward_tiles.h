// How a forward pass is cut into tasks: a pure function of the problem and the machine.
#pragma once

#include <cstdint>
#include <vector>

#include "problem/attention.h"

namespace heddle::engine::cpu {

struct MachineShape {
  int workers;
  int64_t l2_bytes;
  int panel_rows;
};

struct ForwardTiles {
  int64_t group;      ///< query heads that share K and V heads
  int64_t tile_rows;  ///< a multiple of panel_rows
  int64_t tiles;      ///< per group
  int64_t splits, split_keys;
  std::vector<int32_t> order;  ///< tiles, the longest first
};

ForwardTiles forward_tiles(const problem::AttentionStructure& structure,
                           const problem::AttentionSizes& sizes, const MachineShape& machine);

}  // namespace heddle::engine::cpu
