// Shape inference and validation of a graph.
#pragma once

#include "core/status.h"
#include "graph/graph.h"

namespace heddle::graph {

/// Infers what is unset (data types, dims, strides, uids), puts the nodes in dependency order, and
/// checks every rule of the op contracts. The first broken rule is the failure, in words: what was
/// wrong, in which tensor, what was given and what is allowed. On failure the graph is unchanged.
/// Idempotent.
Status validate(Graph& graph);

}  // namespace heddle::graph
