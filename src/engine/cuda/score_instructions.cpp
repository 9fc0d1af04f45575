#include "engine/cuda/score_instructions.h"

#include <cmath>
#include <vector>

namespace heddle::engine::cuda {

using problem::ScoreExpression;
using problem::ScoreNode;
using problem::ScoreOp;

namespace {

/// Of a sum of positions: a distance between aligned ends has four, and a constant or two.
constexpr int kMostTerms = 6;

bool is_whole(const ScoreNode& node) {
  return node.op == ScoreOp::constant && std::trunc(node.value) == node.value &&
         std::abs(node.value) <= 1 << 24;
}

/// `terms` counts down: a sum that adds itself to itself has more paths than can be followed.
bool is_sum_of_positions(const ScoreExpression& expression, int32_t index, int& terms) {
  const ScoreNode& node = expression.nodes[static_cast<size_t>(index)];
  switch (node.op) {
    case ScoreOp::row:
    case ScoreOp::column:
    case ScoreOp::batch:
    case ScoreOp::head:
    case ScoreOp::q_length:
    case ScoreOp::kv_length:
      return terms-- > 0;
    case ScoreOp::constant:
      return terms-- > 0 && is_whole(node);
    case ScoreOp::add:
    case ScoreOp::subtract:
      return is_sum_of_positions(expression, node.a, terms) &&
             is_sum_of_positions(expression, node.b, terms);
    default:
      return false;
  }
}

int instructions_of_node(const ScoreExpression& expression, const ScoreNode& node, bool f32) {
  switch (node.op) {
    case ScoreOp::sine:
    case ScoreOp::cosine:
    case ScoreOp::tangent:
      return 100;
    case ScoreOp::power:
      return f32 ? 100 : 25;
    case ScoreOp::modulo:
      return is_modulo_of_positions(expression, node) ? 6 : 100;
    case ScoreOp::error_function:
      return f32 ? 25 : 14;
    case ScoreOp::exponential_minus_one:
    case ScoreOp::logarithm_plus_one:
      return 25;
    case ScoreOp::logarithm:
      return f32 ? 20 : 2;
    case ScoreOp::tangent_hyperbolic:
      return f32 ? 14 : 5;
    case ScoreOp::exponential:
    case ScoreOp::sigmoid:
      return f32 ? 12 : 4;
    case ScoreOp::divide:
      return expression.nodes[static_cast<size_t>(node.b)].op == ScoreOp::constant ? 1 : 6;
    case ScoreOp::reciprocal:
    case ScoreOp::square_root:
      return 5;
    default:
      return problem::arity(node.op) > 0 ? 1 : 0;
  }
}

}  // namespace

int instructions(const ScoreExpression& expression, bool f32) {
  int sum = 0;
  std::vector<bool> varies;  // from cell to cell: what does not is computed once, as ALiBi's slopes
  for (const ScoreNode& node : expression.nodes) {
    bool any = node.op == ScoreOp::dot || node.op == ScoreOp::row || node.op == ScoreOp::column ||
               node.op == ScoreOp::load || node.op == ScoreOp::gradient;
    for (int32_t operand : {node.a, node.b, node.c})
      any = any || (operand >= 0 && varies[static_cast<size_t>(operand)]);
    varies.push_back(any);
    if (any) sum += instructions_of_node(expression, node, f32);
  }
  return sum;
}

int cells_side_by_side(const ScoreExpression& expression, bool f32) {
  const int count = instructions(expression, f32);
  // Each time around, a loop moves all of a thread's values. A sine at d 128 compiles in 1.7 s side
  // by side for four, where it runs 5 % longer, and in 2.0 for eight; five sines in 3.0 and 4.9.
  return count < 14 ? 0 : count < 64 ? 8 : 4;
}

bool is_modulo_of_positions(const ScoreExpression& expression, const ScoreNode& node) {
  if (node.op != ScoreOp::modulo) return false;
  const ScoreNode& divisor = expression.nodes[static_cast<size_t>(node.b)];
  int terms = kMostTerms;
  return is_whole(divisor) && divisor.value != 0 && is_sum_of_positions(expression, node.a, terms);
}

}  // namespace heddle::engine::cuda
