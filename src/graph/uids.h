// Uids: the caller's names for tensors.
#pragma once

#include "graph/graph.h"

namespace heddle::graph {

/// Gives each tensor without a uid the lowest positive uid not in use, in the tensors' order.
void assign_uids(Graph& graph);

}  // namespace heddle::graph
