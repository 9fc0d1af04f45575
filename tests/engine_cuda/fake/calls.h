// What the driver without a GPU was asked for.
#pragma once

#include <atomic>

namespace heddle::testing {

struct FakeCudaCalls {
  std::atomic<int> libraries = 0;  ///< loaded at present
  std::atomic<int> launches = 0;   ///< of kernels, those of graphs among them
  std::atomic<int> graphs = 0;     ///< there at present, executable ones
  std::atomic<int> graph_launches = 0, node_updates = 0, memsets = 0, maps = 0;
  std::atomic<unsigned> filled = 0;  ///< with which word, at last
};

}  // namespace heddle::testing
