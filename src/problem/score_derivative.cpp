#include "problem/score_derivative.h"

#include <cmath>
#include <utility>
#include <vector>

#include "problem/score_builder.h"

namespace heddle::problem {

namespace {

using Node = ScoreBuilder::Node;

/// Whether d op is unbounded or may overflow, so that 0 times it may be NaN.
bool is_singular(ScoreOp op) {
  switch (op) {
    case ScoreOp::divide:
    case ScoreOp::power:
    case ScoreOp::modulo:
    case ScoreOp::exponential:
    case ScoreOp::exponential_minus_one:
    case ScoreOp::logarithm:
    case ScoreOp::logarithm_plus_one:
    case ScoreOp::square_root:
    case ScoreOp::reciprocal_square_root:
    case ScoreOp::reciprocal:
    case ScoreOp::tangent:
      return true;
    default:
      return false;
  }
}

class Reverse {
 public:
  explicit Reverse(const ScoreExpression& score) : root_(b_.insert(score)) {
    const Node count = b_.size();
    adjoint_.assign(static_cast<size_t>(count), -1);
    is_conditional_.assign(static_cast<size_t>(count), false);
    adjoint_[static_cast<size_t>(root_)] = b_.leaf(ScoreOp::gradient);
    for (Node n = root_; n >= 0; --n) {
      if (adjoint_[static_cast<size_t>(n)] >= 0) differentiate(n, b_[n]);
    }
    count_ = count;
  }

  /// The accumulated adjoint of the leaf that `is_leaf` picks; 0 if the score does not depend on
  /// it.
  template <class IsLeaf>
  ScoreExpression of(IsLeaf&& is_leaf) {
    for (Node n = 0; n < count_; ++n) {
      const Node adjoint = adjoint_[static_cast<size_t>(n)];
      if (is_leaf(b_[n]) && adjoint >= 0) return b_.expression(adjoint);
    }
    return b_.expression(b_.constant(0));
  }

 private:
  Node op(ScoreOp o, Node x, Node y = -1, Node z = -1) { return b_.apply(o, x, y, z); }
  Node number(double value) { return b_.constant(value); }
  Node product(Node x, Node y) { return op(ScoreOp::multiply, x, y); }
  Node negative(Node x) { return op(ScoreOp::negate, x); }

  void add(Node to, Node adjoint, bool is_conditional) {
    if (arity(b_[to].op) == 0 && b_[to].op != ScoreOp::dot && b_[to].op != ScoreOp::load) return;
    Node& sum = adjoint_[static_cast<size_t>(to)];
    sum = sum < 0 ? adjoint : op(ScoreOp::add, sum, adjoint);
    if (is_conditional) is_conditional_[static_cast<size_t>(to)] = true;
  }

  /// adjoint(to) += adjoint(n) * partial.
  void chain(Node n, Node to, Node partial) {
    const Node adjoint = adjoint_[static_cast<size_t>(n)];
    const bool is_conditional = is_conditional_[static_cast<size_t>(n)];
    const bool is_finite = b_[partial].op == ScoreOp::constant && std::isfinite(b_[partial].value);
    Node term = product(adjoint, partial);
    if (!is_finite && (is_singular(b_[n].op) || is_conditional)) {
      term = op(ScoreOp::select, adjoint, term, number(0));
    }
    add(to, term, is_conditional || is_singular(b_[n].op));
  }

  /// adjoint(to) += condition ? adjoint(n) : 0, or the other way round.
  void branch(Node n, Node to, Node condition, bool when) {
    const Node adjoint = adjoint_[static_cast<size_t>(n)];
    add(to, op(ScoreOp::select, condition, when ? adjoint : number(0), when ? number(0) : adjoint),
        true);
  }

  // The nodes are copied in: building the derivative moves the builder's own.
  void differentiate(Node n, ScoreNode node) {
    const Node a = node.a, b = node.b, c = node.c;
    switch (node.op) {
      case ScoreOp::add:
        chain(n, a, number(1));
        return chain(n, b, number(1));
      case ScoreOp::subtract:
        chain(n, a, number(1));
        return chain(n, b, number(-1));
      case ScoreOp::multiply:
        chain(n, a, b);
        return chain(n, b, a);
      case ScoreOp::divide:
        chain(n, a, op(ScoreOp::reciprocal, b));
        return chain(n, b, negative(op(ScoreOp::divide, n, b)));
      case ScoreOp::minimum:
      case ScoreOp::maximum: {
        const bool least = node.op == ScoreOp::minimum;
        const Node is_a = op(least ? ScoreOp::less_equal : ScoreOp::greater_equal, a, b);
        branch(n, a, is_a, true);
        return branch(n, b, is_a, false);
      }
      case ScoreOp::power: {
        chain(n, a, product(b, op(ScoreOp::power, a, op(ScoreOp::subtract, b, number(1)))));
        // At base 0 the power is flat in its exponent, where the logarithm would say 0 * inf.
        const Node base = op(ScoreOp::select, op(ScoreOp::equal, a, number(0)), number(1), a);
        return chain(n, b, product(n, op(ScoreOp::logarithm, base)));
      }
      case ScoreOp::modulo: {  // a - b trunc(a / b)
        chain(n, a, number(1));
        const Node quotient = op(ScoreOp::divide, op(ScoreOp::subtract, a, n), b);
        return chain(n, b, negative(quotient));
      }
      case ScoreOp::negate:
        return chain(n, a, number(-1));
      case ScoreOp::absolute: {
        const Node adjoint = adjoint_[static_cast<size_t>(n)];
        const Node below =
            op(ScoreOp::select, op(ScoreOp::less, a, number(0)), negative(adjoint), number(0));
        return add(a, op(ScoreOp::select, op(ScoreOp::greater, a, number(0)), adjoint, below),
                   true);
      }
      case ScoreOp::exponential:
        return chain(n, a, n);
      case ScoreOp::exponential_minus_one:
        return chain(n, a, op(ScoreOp::exponential, a));
      case ScoreOp::logarithm:
        return chain(n, a, op(ScoreOp::reciprocal, a));
      case ScoreOp::logarithm_plus_one:
        return chain(n, a, op(ScoreOp::reciprocal, op(ScoreOp::add, number(1), a)));
      case ScoreOp::square_root:
        return chain(n, a, op(ScoreOp::divide, number(0.5), n));
      case ScoreOp::reciprocal_square_root:
        return chain(n, a, product(number(-0.5), op(ScoreOp::divide, n, a)));
      case ScoreOp::reciprocal:
        return chain(n, a, negative(product(n, n)));
      case ScoreOp::tangent_hyperbolic:
        return chain(n, a, op(ScoreOp::subtract, number(1), product(n, n)));
      case ScoreOp::sigmoid:
        return chain(n, a, product(n, op(ScoreOp::subtract, number(1), n)));
      case ScoreOp::error_function: {
        const Node gaussian = op(ScoreOp::exponential, negative(product(a, a)));
        return chain(n, a, product(number(2 / std::sqrt(M_PI)), gaussian));
      }
      case ScoreOp::sine:
        return chain(n, a, op(ScoreOp::cosine, a));
      case ScoreOp::cosine:
        return chain(n, a, negative(op(ScoreOp::sine, a)));
      case ScoreOp::tangent:
        return chain(n, a, op(ScoreOp::add, number(1), product(n, n)));
      case ScoreOp::select:
        branch(n, b, a, true);
        return branch(n, c, a, false);
      default:
        return;  // leaves, and ops that are constant almost everywhere
    }
  }

  ScoreBuilder b_;
  Node root_;
  Node count_ = 0;
  std::vector<Node> adjoint_;
  std::vector<bool> is_conditional_;
};

}  // namespace

ScoreExpression derivative_by_dot(const ScoreExpression& score) {
  return Reverse(score).of([](const ScoreNode& node) { return node.op == ScoreOp::dot; });
}

ScoreExpression derivative_by_load(const ScoreExpression& score, OperandId operand) {
  return Reverse(score).of([operand](const ScoreNode& node) {
    return node.op == ScoreOp::load && node.operand == operand;
  });
}

FactoredDerivative factored(const ScoreExpression& derivative) {
  ScoreBuilder b;
  Node rest = b.insert(derivative);
  double factor = 1;
  std::vector<Node> others;  // the chain rule's, whose products have the adjoint on the left
  while (b[rest].op == ScoreOp::multiply) {
    const auto [left, right] = std::pair{b[rest].a, b[rest].b};
    const bool is_right = b[right].op == ScoreOp::constant;
    if (is_right || b[left].op == ScoreOp::constant) {
      factor *= b[is_right ? right : left].value;
      rest = is_right ? left : right;
    } else {
      others.push_back(right);
      rest = left;
    }
  }
  if (!std::isnormal(static_cast<float>(factor))) return {1, derivative};
  for (auto other = others.rbegin(); other != others.rend(); ++other)
    rest = b.apply(ScoreOp::multiply, rest, *other);
  return {factor, b.expression(rest)};
}

}  // namespace heddle::problem
