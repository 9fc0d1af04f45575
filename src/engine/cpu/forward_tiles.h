// How a forward pass is cut into tasks: a pure function of the problem and the machine.
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

#include "problem/attention.h"

namespace heddle::engine::cpu {

struct MachineShape {
  int workers;
  int64_t l2_bytes;
  int panel_rows;
  int parts = 1;                 ///< of a number, as products have it
  int64_t most_rows = kNoLimit;  ///< of a tile, beside what the cache holds

  static constexpr int64_t kNoLimit = std::numeric_limits<int64_t>::max();
};

struct ForwardTiles {
  int64_t group;               ///< query heads that share K and V heads
  int64_t tile_rows;           ///< a multiple of panel_rows
  int64_t tiles;               ///< per group
  int64_t splits;              ///< parts of the keys that a tile sees
  std::vector<int32_t> order;  ///< tiles, the longest first
};

ForwardTiles forward_tiles(const problem::AttentionStructure& structure,
                           const problem::AttentionSizes& sizes, const MachineShape& machine);

/// What the tiles of no machine exceed that has panels of so many rows: a function of sizes, none
/// of which it shrinks with.
struct MostForwardTiles {
  int64_t workers;    ///< with a task to do
  int64_t rows;       ///< of all these workers' tiles together
  int64_t parts;      ///< splits of all groups together, 0 if keys are never split
  int64_t part_rows;  ///< of a group
};

MostForwardTiles most_forward_tiles(const problem::AttentionStructure& structure,
                                    const problem::AttentionSizes& sizes, int panel_rows,
                                    int64_t most_rows = MachineShape::kNoLimit);

}  // namespace heddle::engine::cpu
