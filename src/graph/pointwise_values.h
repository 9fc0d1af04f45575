// Which tensors pass between pointwise ops alone, and so never reach memory.
#pragma once

#include <vector>

#include "graph/graph.h"

namespace heddle::graph {

/// For each tensor of a validated graph, whether it is virtual, made by a pointwise node and read
/// by no other kind of node: an f32 on its way to a tensor in memory, whatever its own type.
std::vector<bool> values_between_pointwise(const Graph& graph);

}  // namespace heddle::graph
