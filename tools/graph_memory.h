// Memory for the tensors a caller binds when a graph is executed, and values to put there.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>

#include "core/status.h"
#include "graph/graph.h"
#include "tools/npy.h"

namespace heddle::tools {

/// One buffer for each bound tensor of a validated graph, 64-byte aligned. Until something is put
/// there every byte is 0xFF, which is NaN in each floating type: what is never written stays NaN.
class GraphMemory {
 public:
  /// Refuses graphs whose bound tensors take more than `limit_bytes` together.
  static Result<GraphMemory> allocate(const graph::Graph& graph,
                                      int64_t limit_bytes = kMostArrayBytes);

  void* data(int64_t uid) { return blocks_.at(uid).data.get(); }
  int64_t bytes(int64_t uid) const { return blocks_.at(uid).bytes; }
  /// Addresses by uid.
  std::unordered_map<int64_t, void*> addresses();

 private:
  struct Free {
    void operator()(std::byte* data) const;
  };
  struct Block {
    std::unique_ptr<std::byte, Free> data;
    int64_t bytes = 0;
  };
  std::map<int64_t, Block> blocks_;
};

/// Puts a value that makes sense into every bound input, the same for the same seed: lengths within
/// their extent, offsets that fit them, probabilities and keys, angles; what a backward op takes
/// from its forward (O, Stats, statistics of a norm) is computed by the reference; the rest is
/// normal with mean 0 and standard deviation 1.
Status fill_random(const graph::Graph& graph, GraphMemory& memory, uint64_t seed);

/// Copies an array into a tensor's memory, by its strides. The dims must be the tensor's and the
/// element type too.
Status put(const graph::Graph& graph, graph::TensorId id, const Array& array, GraphMemory& memory);
/// A tensor's elements as an array.
Array take(const graph::Graph& graph, graph::TensorId id, GraphMemory& memory);

}  // namespace heddle::tools
