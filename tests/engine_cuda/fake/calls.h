// What the driver without a GPU was asked for.
#pragma once

#include <atomic>

namespace heddle::testing {

struct FakeCudaCalls {
  std::atomic<int> libraries = 0;             ///< loaded
  std::atomic<int> launches = 0;              ///< of kernels, those of graphs among them
  std::atomic<int> graphs = 0;                ///< there at present, executable ones
  std::atomic<int> cooperative_launches = 0;  ///< not of graphs
  std::atomic<int> cooperative_nodes = 0;     ///< made
  std::atomic<int> graph_launches = 0, node_updates = 0, maps = 0;
  std::atomic<int> retained_contexts = 0, pools = 0;
  std::atomic<int> allocations = 0;           ///< of memory, not yet freed
  std::atomic<int> events = 0;                ///< created, not yet destroyed
  std::atomic<int> host_values = 0;           ///< kernels of that name that were given arguments
  std::atomic<unsigned long long> value = 0;  ///< the first of the last one's
  std::atomic<const void*> stream = nullptr;  ///< of the last launch, of a kernel or a graph
  std::atomic<int> synchronizations = 0;      ///< of streams
  /// Addresses that the last cache_append was given.
  std::atomic<const void*> appended_q = nullptr, appended_k = nullptr, cache_k = nullptr;
};

}  // namespace heddle::testing
