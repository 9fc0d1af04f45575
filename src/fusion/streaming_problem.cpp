#include "fusion/streaming_problem.h"

#include "fusion/operands.h"
#include "fusion/rope_prologue.h"
#include "graph/names.h"

namespace heddle::fusion {

using graph::Graph;

namespace {

/// The axes of X, rows first: the normalised ones (where scale's dim is not 1) come last.
struct NormAxes {
  std::vector<int> order;
  int32_t normalised = 0;

  NormAxes(const Dims& scale) {
    for (int axis = 0; axis < scale.rank(); ++axis) {
      if (scale[axis] == 1) order.push_back(axis);
    }
    for (int axis = 0; axis < scale.rank(); ++axis) {
      if (scale[axis] == 1) continue;
      order.push_back(axis);
      ++normalised;
    }
  }
};

template <class Problem>
Step finish(Problem problem, const Operands& operands, const graph::Node& node) {
  problem.structure.operands = operands.types();
  problem.sizes.layouts = operands.layouts();
  return {std::move(problem), operands.tensors(), {std::string(graph::name(node))}};
}

}  // namespace

Step rope_step(const Graph& graph, const graph::Node& node) {
  const auto& op = std::get<graph::Rope>(node.op);
  Operands operands(graph);
  problem::RopeProblem problem;
  problem.structure.x = operands.add(op.x);
  problem.structure.y = operands.add(op.y);
  problem.structure.rope = rope_prologue(graph, op, operands);
  problem.sizes.scale = op.output_scale;
  problem.structure.inverse = op.backward;
  return finish(std::move(problem), operands, node);
}

Step norm_step(const Graph& graph, const graph::Node& node) {
  const auto& op = std::get<graph::RmsNorm>(node.op);
  const NormAxes axes(graph[op.scale].dims);
  Operands operands(graph);
  problem::NormProblem problem;
  problem.structure.normalised_dims = axes.normalised;
  problem.structure.x = operands.add_permuted(op.x, axes.order);
  problem.structure.weight = operands.add_permuted(op.scale, axes.order);
  problem.structure.bias = operands.add_permuted(op.bias, axes.order);
  problem.structure.y = operands.add_permuted(op.y, axes.order);
  problem.structure.inv_rms = operands.add_permuted(op.inv_variance, axes.order);
  if (graph[op.epsilon].constant) {
    problem.sizes.epsilon = *graph[op.epsilon].constant;
  } else {
    problem.structure.epsilon = operands.add(op.epsilon);
  }
  return finish(std::move(problem), operands, node);
}

Step norm_backward_step(const Graph& graph, const graph::Node& node) {
  const auto& op = std::get<graph::RmsNormBackward>(node.op);
  const NormAxes axes(graph[op.scale].dims);
  Operands operands(graph);
  problem::NormBackwardProblem problem;
  problem.structure.normalised_dims = axes.normalised;
  problem.structure.dy = operands.add_permuted(op.dy, axes.order);
  problem.structure.x = operands.add_permuted(op.x, axes.order);
  problem.structure.weight = operands.add_permuted(op.scale, axes.order);
  problem.structure.inv_rms = operands.add_permuted(op.inv_variance, axes.order);
  problem.structure.dx = operands.add_permuted(op.dx, axes.order);
  problem.structure.d_weight = operands.add_permuted(op.d_scale, axes.order);
  problem.structure.d_bias = operands.add_permuted(op.d_bias, axes.order);
  return finish(std::move(problem), operands, node);
}

}  // namespace heddle::fusion
