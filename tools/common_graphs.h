// The graphs most programs ask for: whose kernels a package carries, and `heddle prebuild`
// compiles.
#pragma once

#include <string>
#include <vector>

#include "core/status.h"
#include "graph/graph.h"

namespace heddle::tools {

struct CommonGraph {
  std::string name;  ///< "sdpa bf16 d 128 causal, 16384 keys"
  graph::Graph graph;
};

/// As JAX, torch and cuDNN's names ask for them, valid. A kernel serves every batch, count of heads
/// and stride, and all lengths of a class, of which there is one here.
Result<std::vector<CommonGraph>> common_graphs();

}  // namespace heddle::tools
