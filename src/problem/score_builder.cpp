#include "problem/score_builder.h"

#include <bit>
#include <cmath>
#include <cstdint>

#include "problem/score_evaluate.h"

namespace heddle::problem {

size_t ScoreBuilder::Hash::operator()(const ScoreNode& node) const {
  uint64_t hash = std::bit_cast<uint64_t>(node.value);
  for (const int32_t part : {static_cast<int32_t>(node.op), node.a, node.b, node.c, node.operand}) {
    hash = (hash ^ static_cast<uint32_t>(part)) * 0x9E3779B97F4A7C15;
    hash ^= hash >> 32;
  }
  return hash;
}

bool ScoreBuilder::IsSame::operator()(const ScoreNode& x, const ScoreNode& y) const {
  return x.op == y.op && x.a == y.a && x.b == y.b && x.c == y.c &&
         std::bit_cast<uint64_t>(x.value) == std::bit_cast<uint64_t>(y.value) &&
         x.operand == y.operand;
}

ScoreBuilder::Node ScoreBuilder::make(const ScoreNode& node) {
  const auto [known, is_new] = places_.emplace(node, size());
  if (is_new) nodes_.push_back(node);
  return known->second;
}

ScoreBuilder::Node ScoreBuilder::constant(double value) {
  ScoreNode node{ScoreOp::constant};
  node.value = value;
  return make(node);
}

ScoreBuilder::Node ScoreBuilder::load(OperandId operand) {
  ScoreNode node{ScoreOp::load};
  node.operand = operand;
  return make(node);
}

bool ScoreBuilder::is_constant(Node node, double value) const {
  return node >= 0 && (*this)[node].op == ScoreOp::constant && (*this)[node].value == value;
}

ScoreBuilder::Node ScoreBuilder::shortcut(ScoreOp op, Node a, Node b, Node c) {
  switch (op) {
    case ScoreOp::add:
      if (keeps_zero_signs_) return -1;
      if (is_constant(a, 0)) return b;
      return is_constant(b, 0) ? a : -1;
    case ScoreOp::subtract:
      return is_constant(b, 0) && !keeps_zero_signs_ ? a : -1;
    case ScoreOp::multiply:
      if (is_constant(a, 1)) return b;
      return is_constant(b, 1) ? a : -1;
    case ScoreOp::divide:
      return is_constant(b, 1) ? a : -1;
    case ScoreOp::negate:
      return (*this)[a].op == ScoreOp::negate ? (*this)[a].a : -1;
    case ScoreOp::select:
      if (b == c) return b;
      if ((*this)[a].op != ScoreOp::constant) return -1;
      return (*this)[a].value != 0 ? b : c;
    default:
      return -1;
  }
}

ScoreBuilder::Node ScoreBuilder::apply(ScoreOp op, Node a, Node b, Node c) {
  const Node known = shortcut(op, a, b, c);
  if (known >= 0) return known;
  const auto is_known = [&](Node n) { return n < 0 || (*this)[n].op == ScoreOp::constant; };
  if (is_known(a) && is_known(b) && is_known(c)) {
    const auto value = [&](Node n) { return n < 0 ? 0 : (*this)[n].value; };
    return constant(problem::apply(op, value(a), value(b), value(c)));
  }
  return make({op, a, b, c});
}

ScoreBuilder::Node ScoreBuilder::insert(const ScoreExpression& expression, Node dot) {
  std::vector<Node> made;
  const auto at = [&](int32_t n) { return n < 0 ? -1 : made[static_cast<size_t>(n)]; };
  for (const ScoreNode& node : expression.nodes) {
    if (node.op == ScoreOp::dot) {
      made.push_back(dot);
    } else if (arity(node.op) == 0) {
      made.push_back(make(node));
    } else {
      made.push_back(apply(node.op, at(node.a), at(node.b), at(node.c)));
    }
  }
  return at(expression.root);
}

ScoreExpression ScoreBuilder::expression(Node root) const {
  std::vector<Node> roots{root};
  ScoreExpression result;
  result.nodes = program(roots);
  result.root = roots.front();
  return result;
}

std::vector<ScoreNode> ScoreBuilder::program(std::vector<Node>& roots) const {
  std::vector<bool> needed(nodes_.size(), false);
  for (const Node root : roots) needed[static_cast<size_t>(root)] = true;
  for (Node n = size() - 1; n >= 0; --n) {
    if (!needed[static_cast<size_t>(n)]) continue;
    for (Node operand : {(*this)[n].a, (*this)[n].b, (*this)[n].c}) {
      if (operand >= 0) needed[static_cast<size_t>(operand)] = true;
    }
  }
  std::vector<ScoreNode> nodes;
  std::vector<int32_t> place(nodes_.size(), -1);
  const auto at = [&](Node n) { return n < 0 ? -1 : place[static_cast<size_t>(n)]; };
  for (Node n = 0; n < size(); ++n) {
    if (!needed[static_cast<size_t>(n)]) continue;
    ScoreNode node = (*this)[n];
    node.a = at(node.a), node.b = at(node.b), node.c = at(node.c);
    place[static_cast<size_t>(n)] = static_cast<int32_t>(nodes.size());
    nodes.push_back(node);
  }
  for (Node& root : roots) root = at(root);
  return nodes;
}

ScoreExpression simplified(const ScoreExpression& expression) {
  ScoreBuilder builder;
  return builder.expression(builder.insert(expression));
}

}  // namespace heddle::problem
