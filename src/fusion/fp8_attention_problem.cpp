#include "fusion/fp8_attention_problem.h"

#include "fusion/attention_problem.h"
#include "fusion/operands.h"
#include "graph/names.h"
#include "graph/without_scales.h"
#include "problem/operands.h"

namespace heddle::fusion {
namespace {

/// The step of a node's attention without scales, of the problem that `structure` is to hold; its
/// scales are added by `add_scales`.
template <class Problem, class AddScales>
Step with_scales(const graph::Graph& graph, const graph::Node& node, Step plain, Problem problem,
                 AddScales&& add_scales) {
  auto& types = problem::types_of(problem);
  Operands operands(graph, types, problem.sizes.layouts, plain.tensors);
  add_scales(problem.structure, operands);
  types = operands.types();
  problem.sizes.layouts = operands.layouts();
  Step step{std::move(problem), operands.tensors(), {}};
  step.nodes.emplace_back(graph::name(node));
  return step;
}

}  // namespace

Step fp8_attention_step(const graph::Graph& graph, const graph::Node& node) {
  const auto& op = std::get<graph::SdpaFp8>(node.op);
  const graph::Node attention{"", graph::without_scales(op)};
  Step plain = attention_step(graph, {&attention, {}, {}});
  auto& [structure, sizes] = std::get<problem::AttentionProblem>(plain.problem);
  problem::Fp8AttentionProblem problem{{structure}, sizes};
  return with_scales(graph, node, std::move(plain), std::move(problem),
                     [&](problem::Fp8AttentionStructure& s, Operands& operands) {
                       s.descale_q = operands.add(op.descale_q);
                       s.descale_k = operands.add(op.descale_k);
                       s.descale_v = operands.add(op.descale_v);
                       s.descale_s = operands.add(op.descale_s);
                       s.scale_s = operands.add(op.scale_s);
                       s.scale_o = operands.add(op.scale_o);
                       s.amax_s = operands.add(op.amax_s);
                       s.amax_o = operands.add(op.amax_o);
                     });
}

Step fp8_attention_backward_step(const graph::Graph& graph, const graph::Node& node) {
  const auto& op = std::get<graph::SdpaFp8Backward>(node.op);
  const graph::Node attention{"", graph::without_scales(op)};
  Step plain = attention_backward_step(graph, {&attention, {}, {}, {}, {}});
  const auto& backward = std::get<problem::AttentionBackwardProblem>(plain.problem);
  problem::Fp8AttentionBackwardProblem problem{{backward.structure}, backward.sizes};
  return with_scales(graph, node, std::move(plain), std::move(problem),
                     [&](problem::Fp8AttentionBackwardStructure& s, Operands& operands) {
                       s.descale_q = operands.add(op.descale_q);
                       s.descale_k = operands.add(op.descale_k);
                       s.descale_v = operands.add(op.descale_v);
                       s.descale_o = operands.add(op.descale_o);
                       s.descale_d_o = operands.add(op.descale_d_o);
                       s.descale_s = operands.add(op.descale_s);
                       s.descale_d_p = operands.add(op.descale_d_p);
                       s.scale_s = operands.add(op.scale_s);
                       s.scale_d_p = operands.add(op.scale_d_p);
                       s.scale_d_q = operands.add(op.scale_d_q);
                       s.scale_d_k = operands.add(op.scale_d_k);
                       s.scale_d_v = operands.add(op.scale_d_v);
                       s.amax_d_q = operands.add(op.amax_d_q);
                       s.amax_d_k = operands.add(op.amax_d_k);
                       s.amax_d_v = operands.add(op.amax_d_v);
                       s.amax_d_p = operands.add(op.amax_d_p);
                     });
}

}  // namespace heddle::fusion
