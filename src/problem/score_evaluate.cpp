#include "problem/score_evaluate.h"

#include <cmath>

namespace heddle::problem {

double apply(ScoreOp op, double a, double b, double c) {
  switch (op) {
    case ScoreOp::add:
      return a + b;
    case ScoreOp::subtract:
      return a - b;
    case ScoreOp::multiply:
      return a * b;
    case ScoreOp::divide:
      return a / b;
    case ScoreOp::minimum:
      return a <= b || std::isnan(a) ? a : b;
    case ScoreOp::maximum:
      return a >= b || std::isnan(a) ? a : b;
    case ScoreOp::power:
      return std::pow(a, b);
    case ScoreOp::modulo:
      return std::fmod(a, b);
    case ScoreOp::negate:
      return -a;
    case ScoreOp::absolute:
      return std::fabs(a);
    case ScoreOp::exponential:
      return std::exp(a);
    case ScoreOp::exponential_minus_one:
      return std::expm1(a);
    case ScoreOp::logarithm:
      return std::log(a);
    case ScoreOp::logarithm_plus_one:
      return std::log1p(a);
    case ScoreOp::square_root:
      return std::sqrt(a);
    case ScoreOp::reciprocal_square_root:
      return 1 / std::sqrt(a);
    case ScoreOp::reciprocal:
      return 1 / a;
    case ScoreOp::tangent_hyperbolic:
      return std::tanh(a);
    case ScoreOp::sigmoid:
      return 1 / (1 + std::exp(-a));
    case ScoreOp::error_function:
      return std::erf(a);
    case ScoreOp::sine:
      return std::sin(a);
    case ScoreOp::cosine:
      return std::cos(a);
    case ScoreOp::tangent:
      return std::tan(a);
    case ScoreOp::floor:
      return std::floor(a);
    case ScoreOp::ceil:
      return std::ceil(a);
    case ScoreOp::equal:
      return a == b;
    case ScoreOp::not_equal:
      return a != b;
    case ScoreOp::less:
      return a < b;
    case ScoreOp::less_equal:
      return a <= b;
    case ScoreOp::greater:
      return a > b;
    case ScoreOp::greater_equal:
      return a >= b;
    case ScoreOp::logical_and:
      return a != 0 && b != 0;
    case ScoreOp::logical_or:
      return a != 0 || b != 0;
    case ScoreOp::logical_not:
      return a == 0;
    case ScoreOp::select:
      return a != 0 ? b : c;
    default:
      return 0;  // leaves have no operands to apply to
  }
}

namespace {

double leaf(const ScoreNode& node, const ScoreLeaves& leaves) {
  switch (node.op) {
    case ScoreOp::dot:
      return leaves.dot;
    case ScoreOp::row:
      return leaves.row;
    case ScoreOp::column:
      return leaves.column;
    case ScoreOp::batch:
      return leaves.batch;
    case ScoreOp::head:
      return leaves.head;
    case ScoreOp::constant:
      return node.value;
    case ScoreOp::load:
      return leaves.load(node.operand);
    case ScoreOp::q_length:
      return leaves.q_length;
    case ScoreOp::kv_length:
      return leaves.kv_length;
    default:
      return leaves.gradient;
  }
}

}  // namespace

double evaluate(const ScoreExpression& expression, const ScoreLeaves& leaves) {
  std::vector<double> values;
  values.reserve(expression.nodes.size());
  const auto at = [&](int32_t n) { return n < 0 ? 0 : values[static_cast<size_t>(n)]; };
  for (const ScoreNode& node : expression.nodes) {
    values.push_back(arity(node.op) == 0 ? leaf(node, leaves)
                                         : apply(node.op, at(node.a), at(node.b), at(node.c)));
  }
  return at(expression.root);
}

}  // namespace heddle::problem
