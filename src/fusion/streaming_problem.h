// rope and norm nodes that stand alone, as problems.
#pragma once

#include <optional>

#include "fusion/schedule.h"
#include "graph/graph.h"

namespace heddle::fusion {

Step rope_step(const graph::Graph& graph, const graph::Node& node);
/// Of a norm or the backward of one; nothing if the node is another.
std::optional<Step> norm_step(const graph::Graph& graph, const graph::Node& node);

}  // namespace heddle::fusion
