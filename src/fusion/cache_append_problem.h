// cache_append nodes as problems.
#pragma once

#include "fusion/schedule.h"
#include "graph/graph.h"

namespace heddle::fusion {

Step cache_append_step(const graph::Graph& graph, const graph::Node& node);

}  // namespace heddle::fusion
