#include "rewrite/score_graph.h"

#include <algorithm>
#include <limits>

#include "core/status.h"

namespace heddle::rewrite {

using graph::PointwiseMode;
using graph::TensorId;

ScoreGraph::ScoreGraph(graph::Graph& graph, DataType numbers) : graph_(graph), numbers_(numbers) {
  score_ = inner("score");
  mod_.score_in = score_;
}

TensorId ScoreGraph::inner(const std::string& name) {
  const int number = ++names_[name];
  graph::Tensor t;
  t.name = number == 1 ? name : fmt::format("{} {}", name, number);
  t.is_virtual = true;
  return graph_.add(std::move(t));
}

TensorId ScoreGraph::constant(const std::string& name, double value) {
  const int number = ++names_[name];
  graph::Tensor t;
  t.name = number == 1 ? name : fmt::format("{} {}", name, number);
  t.dtype = numbers_;
  t.dims = {1, 1, 1, 1};
  t.strides = {1, 1, 1, 1};
  t.constant = value;
  return graph_.add(std::move(t));
}

TensorId ScoreGraph::apply(PointwiseMode mode, std::vector<TensorId> inputs,
                           const std::string& result) {
  graph::Pointwise op;
  op.mode = mode;
  op.inputs = std::move(inputs);
  op.output = inner(result);
  mod_.ops.push_back(op);
  return op.output;
}

TensorId ScoreGraph::index(int axis) {
  constexpr const char* kNames[] = {"batch", "head", "row", "column"};
  const TensorId result = apply(PointwiseMode::gen_index, {}, kNames[axis]);
  mod_.ops.back().axis = axis;
  return result;
}

void ScoreGraph::add(TensorId term) {
  score_ = apply(PointwiseMode::add, {score_, term}, "biased_score");
}

void ScoreGraph::multiply(TensorId factor) {
  score_ = apply(PointwiseMode::mul, {score_, factor}, "multiplied_score");
}

void ScoreGraph::divide(TensorId by) {
  score_ = apply(PointwiseMode::div, {score_, by}, "divided_score");
}

void ScoreGraph::cap(double cap) {
  const TensorId by = constant("cap", cap);
  const TensorId ratio = apply(PointwiseMode::div, {score_, by}, "score_over_cap");
  const TensorId tanh = apply(PointwiseMode::tanh_fwd, {ratio}, "tanh");
  score_ = apply(PointwiseMode::mul, {tanh, by}, "capped_score");
}

void ScoreGraph::replace_where_not(TensorId predicate, double fill) {
  const TensorId hidden = constant("hidden", fill);
  score_ = apply(PointwiseMode::binary_select, {predicate, score_, hidden}, "visible_score");
}

void ScoreGraph::hide_where_not(TensorId predicate) {
  replace_where_not(predicate, -std::numeric_limits<double>::infinity());
}

void ScoreGraph::add_where_not(TensorId predicate, double fill) {
  const TensorId none = constant("no fill", 0), hidden = constant("hidden", fill);
  add(apply(PointwiseMode::binary_select, {predicate, none, hidden}, "mask"));
}

void ScoreGraph::raise_where_not(TensorId predicate, double from, double to) {
  const TensorId rest = apply(PointwiseMode::sub, {score_, constant("from", from)}, "rest"),
                 raised = apply(PointwiseMode::add, {rest, constant("to", to)}, "raised_score");
  score_ = apply(PointwiseMode::binary_select, {predicate, score_, raised}, "visible_score");
}

TensorId ScoreGraph::truth(const std::vector<TensorId>& predicates,
                           const std::vector<bool>& table) {
  if (std::find(table.begin(), table.end(), false) == table.end()) return graph::kNone;
  // By the last predicate: table = (p and where it holds) or (not p and where it does not).
  const std::vector<TensorId> others(predicates.begin(), predicates.end() - 1);
  const auto middle = table.begin() + static_cast<std::ptrdiff_t>(table.size() / 2);
  const std::vector<bool> fails(table.begin(), middle), holds(middle, table.end());
  const auto never = [](const std::vector<bool>& t) {
    return std::find(t.begin(), t.end(), true) == t.end();
  };
  const TensorId p = predicates.back();
  if (fails == holds) return truth(others, holds);
  const auto part = [&](TensorId condition, const std::vector<bool>& rest) {
    const TensorId more = truth(others, rest);
    return more == graph::kNone ? condition
                                : apply(PointwiseMode::logical_and, {condition, more}, "both");
  };
  if (never(fails)) return part(p, holds);
  const TensorId not_p = apply(PointwiseMode::logical_not, {p}, "not");
  if (never(holds)) return part(not_p, fails);
  const TensorId a = part(p, holds);
  return apply(PointwiseMode::logical_or, {a, part(not_p, fails)}, "either");
}

graph::ScoreModifier ScoreGraph::take() {
  mod_.score_out = score_;
  return std::move(mod_);
}

}  // namespace heddle::rewrite
