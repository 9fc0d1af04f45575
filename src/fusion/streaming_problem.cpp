#include "fusion/streaming_problem.h"

#include <type_traits>

#include "fusion/operands.h"
#include "fusion/rope_prologue.h"
#include "graph/names.h"

namespace heddle::fusion {

using graph::Graph;

namespace {

/// The axes of X, rows first: the normalised ones come last.
struct NormAxes {
  std::vector<int> order;
  int32_t normalised = 0;

  template <class Op>
  NormAxes(const Graph& graph, const Op& op) {
    const Dims& scale = graph[op.scale].dims;
    for (int axis = 0; axis < scale.rank(); ++axis) {
      if (!is_normalised(op, scale, axis)) order.push_back(axis);
    }
    for (int axis = 0; axis < scale.rank(); ++axis) {
      if (!is_normalised(op, scale, axis)) continue;
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

/// A number that the graph knows, or the operand that has it.
void set_number(const Graph& graph, graph::TensorId id, Operands& operands,
                problem::OperandId& operand, double& known) {
  if (graph[id].constant)
    known = *graph[id].constant;
  else
    operand = operands.add(id);
}

/// The problem of a norm's node, or of its backward's. Only layer_norm has means.
template <class Op>
Step norm_step_of(const Graph& graph, const graph::Node& node, const Op& op) {
  constexpr bool kCentred = requires { op.mean; };
  const NormAxes axes(graph, op);
  Operands operands(graph);
  const auto add = [&](graph::TensorId id) { return operands.add_permuted(id, axes.order); };
  problem::NormProblem problem;
  problem.structure.centred = kCentred;
  problem.structure.normalised_dims = axes.normalised;
  problem.structure.x = add(op.x);
  problem.structure.weight = add(op.scale);
  problem.structure.bias = add(op.bias);
  problem.structure.residual = add(op.residual);
  problem.structure.residual_bias = add(op.residual_bias);
  problem.structure.sum = add(op.sum);
  problem.structure.y = add(op.y);
  if constexpr (kCentred) problem.structure.mean = add(op.mean);
  problem.structure.inv_rms = add(op.inv_variance);
  set_number(graph, op.epsilon, operands, problem.structure.epsilon, problem.sizes.epsilon);
  return finish(std::move(problem), operands, node);
}

template <class Op>
Step norm_backward_step_of(const Graph& graph, const graph::Node& node, const Op& op) {
  constexpr bool kCentred = requires { op.mean; };
  const NormAxes axes(graph, op);
  Operands operands(graph);
  const auto add = [&](graph::TensorId id) { return operands.add_permuted(id, axes.order); };
  problem::NormBackwardProblem problem;
  problem.structure.centred = kCentred;
  problem.structure.normalised_dims = axes.normalised;
  problem.structure.dy = add(op.dy);
  problem.structure.x = add(op.x);
  problem.structure.weight = add(op.scale);
  if constexpr (kCentred) problem.structure.mean = add(op.mean);
  problem.structure.inv_rms = add(op.inv_variance);
  problem.structure.dx = add(op.dx);
  problem.structure.d_weight = add(op.d_scale);
  problem.structure.d_bias = add(op.d_bias);
  return finish(std::move(problem), operands, node);
}

template <class Op>
Step channel_norm_step_of(const Graph& graph, const graph::Node& node, const Op& op) {
  constexpr bool kOfBatch = requires { op.momentum; };
  const NormAxes axes(graph, op);
  Operands operands(graph);
  const auto add = [&](graph::TensorId id) { return operands.add_permuted(id, axes.order); };
  problem::ChannelNormProblem problem;
  problem.structure.of_batch = kOfBatch;
  problem.structure.normalised_dims = axes.normalised;
  problem.structure.x = add(op.x);
  problem.structure.weight = add(op.scale);
  problem.structure.bias = add(op.bias);
  problem.structure.y = add(op.y);
  problem.structure.mean = add(op.mean);
  problem.structure.inv_rms = add(op.inv_variance);
  if constexpr (kOfBatch) {
    problem.structure.running_mean = add(op.running_mean);
    problem.structure.running_var = add(op.running_var);
    problem.structure.next_mean = add(op.next_mean);
    problem.structure.next_var = add(op.next_var);
    if (op.momentum != graph::kNone)
      set_number(graph, op.momentum, operands, problem.structure.momentum, problem.sizes.momentum);
  }
  set_number(graph, op.epsilon, operands, problem.structure.epsilon, problem.sizes.epsilon);
  return finish(std::move(problem), operands, node);
}

template <class Op>
Step channel_norm_backward_step_of(const Graph& graph, const graph::Node& node, const Op& op) {
  const NormAxes axes(graph, op);
  Operands operands(graph);
  const auto add = [&](graph::TensorId id) { return operands.add_permuted(id, axes.order); };
  problem::ChannelNormBackwardProblem problem;
  problem.structure.of_batch = std::is_same_v<Op, graph::BatchNormBackward>;
  problem.structure.normalised_dims = axes.normalised;
  problem.structure.dy = add(op.dy);
  problem.structure.x = add(op.x);
  problem.structure.weight = add(op.scale);
  problem.structure.mean = add(op.mean);
  problem.structure.inv_rms = add(op.inv_variance);
  problem.structure.dx = add(op.dx);
  problem.structure.d_weight = add(op.d_scale);
  problem.structure.d_bias = add(op.d_bias);
  return finish(std::move(problem), operands, node);
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

std::optional<Step> norm_step(const Graph& graph, const graph::Node& node) {
  if (const auto* op = std::get_if<graph::RmsNorm>(&node.op)) return norm_step_of(graph, node, *op);
  if (const auto* op = std::get_if<graph::LayerNorm>(&node.op))
    return norm_step_of(graph, node, *op);
  if (const auto* op = std::get_if<graph::RmsNormBackward>(&node.op))
    return norm_backward_step_of(graph, node, *op);
  if (const auto* op = std::get_if<graph::LayerNormBackward>(&node.op))
    return norm_backward_step_of(graph, node, *op);
  if (const auto* op = std::get_if<graph::InstanceNorm>(&node.op))
    return channel_norm_step_of(graph, node, *op);
  if (const auto* op = std::get_if<graph::BatchNorm>(&node.op))
    return channel_norm_step_of(graph, node, *op);
  if (const auto* op = std::get_if<graph::InstanceNormBackward>(&node.op))
    return channel_norm_backward_step_of(graph, node, *op);
  if (const auto* op = std::get_if<graph::BatchNormBackward>(&node.op))
    return channel_norm_backward_step_of(graph, node, *op);
  return {};
}

}  // namespace heddle::fusion
