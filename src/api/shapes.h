// A planned graph at the dims of one execution.
#pragma once

#include <span>
#include <vector>

#include "api/port.h"
#include "core/status.h"
#include "graph/graph.h"

namespace heddle::api {

/// `planned`, a valid graph with these ports, with tensors of `shapes` in their dims. Fails unless
/// it is valid so, and no dim exceeds what it was planned with.
Result<graph::Graph> with_shapes(const graph::Graph& planned, const std::vector<Port>& ports,
                                 std::span<const Shape> shapes);

}  // namespace heddle::api
