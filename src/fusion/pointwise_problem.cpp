#include "fusion/pointwise_problem.h"

#include <algorithm>
#include <unordered_map>

#include "fusion/operands.h"
#include "fusion/pointwise_mode.h"
#include "graph/names.h"
#include "graph/pointwise_values.h"
#include "graph/ports.h"
#include "problem/score_builder.h"

namespace heddle::fusion {

using graph::Graph;
using graph::kNone;
using graph::PointwiseMode;
using graph::PointwiseNode;
using graph::TensorId;
using problem::ScoreBuilder;
using problem::ScoreOp;

namespace {

/// Tensors of results made together: the arguments of a kernel. Beyond, there are more steps.
constexpr size_t kMostTogether = 32;

/// What the mode reads: gen_index takes no element of its input.
std::vector<TensorId> elements_read(const PointwiseNode& op) {
  std::vector<TensorId> ids;
  if (op.mode == PointwiseMode::gen_index) return ids;
  for (const TensorId id : op.inputs())
    if (id != kNone) ids.push_back(id);
  return ids;
}

/// A step's nodes as one program.
class Program {
 public:
  /// Of results of the dims of `like`.
  Program(const Graph& graph, const Graph& planned, const std::vector<bool>& between,
          const std::vector<int>& maker, TensorId like)
      : graph_(graph),
        planned_(planned),
        between_(between),
        maker_(maker),
        like_(like),
        operands_(graph) {}

  /// The result of a node, whose inner values are made first: without recursion, as chains may be
  /// as long as a graph.
  ScoreBuilder::Node value(TensorId result) {
    std::vector<TensorId> open{result};
    while (!open.empty()) {
      const TensorId id = open.back();
      if (values_.contains(id)) {
        open.pop_back();
        continue;
      }
      const PointwiseNode* const op = made_here(id, result);
      const size_t before = open.size();
      if (op) {
        const std::vector<TensorId> inputs = elements_read(*op);
        for (auto input = inputs.rbegin(); input != inputs.rend(); ++input)
          if (!values_.contains(*input)) open.push_back(*input);
      }
      if (open.size() > before) continue;
      open.pop_back();
      values_[id] = op ? apply(*op) : load(id);
    }
    return values_.at(result);
  }

  ScoreBuilder& builder() { return builder_; }
  Operands& operands() { return operands_; }

 private:
  /// The node that makes the value as part of the program, null of what lies in memory.
  const PointwiseNode* made_here(TensorId id, TensorId result) const {
    if (id != result && !between_[static_cast<size_t>(id)]) return nullptr;
    return &std::get<PointwiseNode>(
        graph_.nodes[static_cast<size_t>(maker_[static_cast<size_t>(id)])].op);
  }

  ScoreBuilder::Node load(TensorId id) {
    if (graph_[id].constant) return builder_.constant(*graph_[id].constant);
    return builder_.load(operands_.add_with_trailing_dims(id));
  }

  /// Whether results have more indices along a gen_index's axis than it has itself.
  bool is_broadcast_index(const Graph& graph, const PointwiseNode& op) const {
    const Dims &own = graph[op.y].dims, &all = graph[like_].dims;
    const int axis = static_cast<int>(op.axis), from_last = own.rank() - axis;
    return own[axis] == 1 && from_last <= all.rank() && all[all.rank() - from_last] != 1;
  }

  ScoreBuilder::Node apply(const PointwiseNode& op) {
    if (op.mode == PointwiseMode::gen_index) {
      constexpr ScoreOp kIndex[] = {ScoreOp::batch, ScoreOp::head, ScoreOp::row, ScoreOp::column};
      // Broadcast along its own axis it is the only index there is, at late sizes too.
      if (is_broadcast_index(graph_, op) || is_broadcast_index(planned_, op))
        return builder_.constant(0);
      return builder_.leaf(kIndex[4 - graph_[op.y].dims.rank() + op.axis]);
    }
    ScoreBuilder::Node x[3] = {-1, -1, -1};
    for (size_t n = 0; n < 3; ++n)
      if (op.inputs()[n] != kNone) x[n] = values_.at(op.inputs()[n]);
    return apply_mode(builder_, op.mode, op.numbers, x[0], x[1], x[2]);
  }

  const Graph &graph_, &planned_;
  const std::vector<bool>& between_;
  const std::vector<int>& maker_;
  const TensorId like_;
  Operands operands_;
  ScoreBuilder builder_{/*keeps_zero_signs=*/true};
  std::unordered_map<TensorId, ScoreBuilder::Node> values_;
};

}  // namespace

PointwiseFusion::PointwiseFusion(const Graph& graph, const Graph& planned)
    : graph_(graph),
      planned_(planned),
      between_(graph::values_between_pointwise(graph)),
      maker_(graph.tensors.size(), -1) {
  for (size_t n = 0; n < graph.nodes.size(); ++n)
    for (const graph::Port& port : graph::ports(graph.nodes[n]))
      if (port.output) maker_[static_cast<size_t>(port.tensor)] = static_cast<int>(n);
}

const PointwiseNode& PointwiseFusion::node(int place) const {
  return std::get<PointwiseNode>(graph_.nodes[static_cast<size_t>(place)].op);
}

bool PointwiseFusion::makes_memory(int place) const { return !is_between(node(place).y); }

std::vector<TensorId> PointwiseFusion::reads(int place) const {
  std::vector<bool> seen(graph_.tensors.size(), false);
  std::vector<TensorId> found, open = elements_read(node(place));
  while (!open.empty()) {
    const TensorId id = open.back();
    open.pop_back();
    if (seen[static_cast<size_t>(id)] || graph_[id].constant) continue;
    seen[static_cast<size_t>(id)] = true;
    found.push_back(id);
    if (!is_between(id)) continue;
    const std::vector<TensorId> more = elements_read(node(maker_[static_cast<size_t>(id)]));
    open.insert(open.end(), more.begin(), more.end());
  }
  std::ranges::sort(found);
  return found;
}

std::vector<int> PointwiseFusion::together_with(int place, std::vector<int>& runs_at) const {
  std::vector<int> places{place};
  std::vector<TensorId> read = reads(place);
  const auto count = static_cast<int>(graph_.nodes.size());
  for (int other = place + 1; other < count; ++other) {
    const auto* const op = std::get_if<PointwiseNode>(&graph_.nodes[static_cast<size_t>(other)].op);
    if (!op || !makes_memory(other) || runs_at[static_cast<size_t>(other)] != other ||
        planned_[op->y].dims != planned_[node(place).y].dims)
      continue;
    const std::vector<TensorId> more = reads(other);
    const bool is_there = std::ranges::all_of(more, [&](TensorId id) {
      const int maker = maker_[static_cast<size_t>(id)];
      return is_between(id) || maker < 0 || runs_at[static_cast<size_t>(maker)] < place;
    });
    std::vector<TensorId> all;
    std::ranges::set_union(read, more, std::back_inserter(all));
    if (!is_there || all.size() == read.size() + more.size() ||
        all.size() + places.size() >= kMostTogether)
      continue;
    places.push_back(other);
    read = std::move(all);
    runs_at[static_cast<size_t>(other)] = place;
  }
  return places;
}

Step PointwiseFusion::step(const std::vector<int>& places) const {
  Program program(graph_, planned_, between_, maker_, node(places.front()).y);
  std::vector<ScoreBuilder::Node> roots;
  Step step;
  for (const int place : places) {
    roots.push_back(program.value(node(place).y));
    step.nodes.emplace_back(graph::name(graph_.nodes[static_cast<size_t>(place)]));
  }
  problem::PointwiseProblem problem;
  problem::PointwiseStructure& structure = problem.structure;
  structure.nodes = program.builder().program(roots);
  for (size_t n = 0; n < places.size(); ++n)
    structure.results.push_back(
        {roots[n], program.operands().add_with_trailing_dims(node(places[n]).y)});
  structure.operands = program.operands().types();
  problem.sizes.layouts = program.operands().layouts();
  step.tensors = program.operands().tensors();
  step.problem = std::move(problem);
  return step;
}

}  // namespace heddle::fusion
