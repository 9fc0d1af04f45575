// sdpa_fp8 and sdpa_fp8_backward nodes as fp8 attention problems.
#pragma once

#include "fusion/schedule.h"
#include "graph/graph.h"

namespace heddle::fusion {

Step fp8_attention_step(const graph::Graph& graph, const graph::Node& node);
Step fp8_attention_backward_step(const graph::Graph& graph, const graph::Node& node);

}  // namespace heddle::fusion
