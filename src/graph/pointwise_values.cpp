#include "graph/pointwise_values.h"

#include "graph/ports.h"

namespace heddle::graph {

std::vector<bool> values_between_pointwise(const Graph& graph) {
  std::vector<bool> between(graph.tensors.size(), false);
  const auto is_pointwise = [](const Node& node) {
    return std::holds_alternative<PointwiseNode>(node.op);
  };
  for (const Node& node : graph.nodes) {
    if (const auto* op = std::get_if<PointwiseNode>(&node.op))
      between[static_cast<size_t>(op->y)] = graph[op->y].is_virtual;
  }
  for (const Node& node : graph.nodes) {
    if (is_pointwise(node)) continue;
    for (const Port& port : ports(node)) between[static_cast<size_t>(port.tensor)] = false;
  }
  return between;
}

}  // namespace heddle::graph
