// rope and rms_norm nodes that stand alone, as problems.
#pragma once

#include "fusion/schedule.h"
#include "graph/graph.h"

namespace heddle::fusion {

Step rope_step(const graph::Graph& graph, const graph::Node& node);
Step norm_step(const graph::Graph& graph, const graph::Node& node);
Step norm_backward_step(const graph::Graph& graph, const graph::Node& node);

}  // namespace heddle::fusion
