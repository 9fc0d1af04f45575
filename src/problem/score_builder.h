// Builds score expressions node by node: equal nodes are made once, constants are folded, and what
// changes nothing (x + 0, 1 x, a select with a known condition) is not made at all.
#pragma once

#include <unordered_map>
#include <vector>

#include "problem/score.h"

namespace heddle::problem {

class ScoreBuilder {
 public:
  /// `keeps_zero_signs`: x + 0, which makes 0 of -0, is a sum. A score needs no such care.
  explicit ScoreBuilder(bool keeps_zero_signs = false) : keeps_zero_signs_(keeps_zero_signs) {}

  using Node = int32_t;  ///< index of a node of this builder

  Node leaf(ScoreOp op) { return make({op}); }
  Node constant(double value);
  Node load(OperandId operand);
  /// `op` of as many nodes as its arity.
  Node apply(ScoreOp op, Node a, Node b = -1, Node c = -1);
  /// All of `expression`, its `dot` leaf replaced by `dot`. Gives its root.
  Node insert(const ScoreExpression& expression, Node dot);
  Node insert(const ScoreExpression& expression) { return insert(expression, leaf(ScoreOp::dot)); }

  const ScoreNode& operator[](Node node) const { return nodes_[static_cast<size_t>(node)]; }
  bool is_constant(Node node, double value) const;
  int32_t size() const { return static_cast<int32_t>(nodes_.size()); }
  /// The expression rooted at `root`, without the nodes it does not need.
  ScoreExpression expression(Node root) const;
  /// The nodes that several roots need, which then are those of that list.
  std::vector<ScoreNode> program(std::vector<Node>& roots) const;

 private:
  Node make(const ScoreNode& node);
  /// The node that equals op(a, b, c) without being one, or -1.
  Node shortcut(ScoreOp op, Node a, Node b, Node c);

  struct Hash {
    size_t operator()(const ScoreNode& node) const;
  };
  struct IsSame {  ///< in bits: -0 differs from 0, and NaN equals itself
    bool operator()(const ScoreNode& x, const ScoreNode& y) const;
  };

  bool keeps_zero_signs_;
  std::vector<ScoreNode> nodes_;
  std::unordered_map<ScoreNode, Node, Hash, IsSame> places_;
};

/// The same expression with constants folded, repeated and dead nodes removed.
ScoreExpression simplified(const ScoreExpression& expression);

}  // namespace heddle::problem
