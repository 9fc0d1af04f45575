// Fusion's result: a graph cut into problems, in order, with the graph tensor behind each operand.
#pragma once

#include <string>
#include <vector>

#include "core/status.h"
#include "graph/graph.h"
#include "problem/problem.h"

namespace heddle::fusion {

struct Step {
  problem::Problem problem;
  /// The graph tensor bound to each operand of the problem, in the problem's operand order.
  std::vector<graph::TensorId> tensors;
  std::vector<std::string> nodes;  ///< names of the graph's nodes this step stands for
};

struct Schedule {
  std::vector<Step> steps;
  /// Virtual tensors that pass between steps and so need memory of their own.
  std::vector<graph::TensorId> intermediates;
};

/// Cuts a validated graph into problems: rope(Q), rope(K) and sdpa become one attention problem,
/// sdpa_backward with its rope_backwards another; whatever stands alone stays alone.
Result<Schedule> fuse(const graph::Graph& graph);
/// The graph at late sizes, cut as `planned` is, whose tensors it has.
Result<Schedule> fuse(const graph::Graph& graph, const graph::Graph& planned);

}  // namespace heddle::fusion
