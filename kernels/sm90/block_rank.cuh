// Which block of its cluster this is, where blocks share columns.
#pragma once

#include "../ptx/cluster.cuh"

namespace heddle::sm90 {

/// Of so many; one alone is no cluster.
template <int kRanks>
HEDDLE_DEVICE int block_rank() {
  return kRanks > 1 ? static_cast<int>(ptx::cluster_rank()) : 0;
}

}  // namespace heddle::sm90
