#include "fusion/score_expression.h"

#include <cmath>
#include <unordered_map>

#include "fusion/pointwise_mode.h"
#include "graph/score_reads.h"
#include "problem/score_builder.h"
#include "problem/score_derivative.h"

namespace heddle::fusion {

using graph::kNone;
using graph::PointwiseMode;
using graph::TensorId;
using problem::ScoreBuilder;
using problem::ScoreExpression;
using problem::ScoreOp;
using Node = ScoreBuilder::Node;

namespace {

const double kLog2E = 1 / std::log(2);

/// Translates pointwise ops; remembers which node each of the expression's own tensors became.
class Translation {
 public:
  Translation(const ScoreContext& context, ScoreBuilder& builder)
      : context_(context), builder_(builder) {}

  Node run(const graph::ScoreModifier& modifier, Node score_in) {
    nodes_[modifier.score_in] = score_in;
    for (const graph::Pointwise& op : modifier.ops) nodes_[op.output] = translate(op);
    return nodes_.at(modifier.score_out);
  }

 private:
  Node translate(const graph::Pointwise& op) {
    if (op.mode == PointwiseMode::gen_index) {
      constexpr ScoreOp kIndex[] = {ScoreOp::batch, ScoreOp::head, ScoreOp::row, ScoreOp::column};
      return builder_.leaf(kIndex[op.axis]);
    }
    Node x[3] = {-1, -1, -1};
    for (size_t n = 0; n < op.inputs.size(); ++n) x[n] = input(op.inputs[n]);
    return apply_mode(builder_, op.mode, op.numbers, x[0], x[1], x[2]);
  }

  Node input(TensorId id) {
    const auto own = nodes_.find(id);
    if (own != nodes_.end()) return own->second;
    const graph::Tensor& tensor = context_.graph[id];
    if (tensor.constant) return builder_.constant(*tensor.constant);
    if (context_.lengths_are_known && id == context_.attributes.seq_len_q) {
      return builder_.leaf(ScoreOp::q_length);
    }
    if (context_.lengths_are_known && id == context_.attributes.seq_len_kv) {
      return builder_.leaf(ScoreOp::kv_length);
    }
    return builder_.load(context_.operands.add(id));
  }

  const ScoreContext& context_;
  ScoreBuilder& builder_;
  std::unordered_map<TensorId, Node> nodes_;
};

/// slope_h (col - row): slopes are powers of 2^(-8/n), n the largest power of two up to Hq; heads
/// past n take the odd powers of its square root.
Node alibi(ScoreBuilder& b, int64_t q_heads) {
  int64_t n = 1;
  while (2 * n <= q_heads) n *= 2;
  const auto number = [&](double value) { return b.constant(value); };
  const Node head = b.leaf(ScoreOp::head);
  const auto exponent = [&](double factor, double offset) {
    return b.apply(ScoreOp::multiply, number(factor), b.apply(ScoreOp::add, head, number(offset)));
  };
  const auto count = static_cast<double>(n);
  Node power = exponent(-8 / count, 1);
  if (q_heads > n) {
    const Node extra = exponent(-8 / count, 0.5 - count);  // -4 (2 (h - n) + 1) / n
    power = b.apply(ScoreOp::select, b.apply(ScoreOp::less, head, number(count)), power, extra);
  }
  const Node slope = b.apply(ScoreOp::power, number(2), power);
  const Node distance = b.apply(ScoreOp::subtract, b.leaf(ScoreOp::column), b.leaf(ScoreOp::row));
  return b.apply(ScoreOp::multiply, slope, distance);
}

}  // namespace

ScoreExpression modified_dot(const ScoreContext& context) {
  ScoreBuilder builder;
  const Node dot = builder.leaf(ScoreOp::dot);
  if (!context.attributes.score_mod) return builder.expression(dot);
  Translation translation(context, builder);
  return builder.expression(translation.run(*context.attributes.score_mod, dot));
}

ScoreExpression with_additive_terms(const ScoreExpression& score, const ScoreContext& context) {
  const graph::AttentionAttributes& a = context.attributes;
  ScoreBuilder b;
  Node sum = b.insert(score);
  const auto add = [&](Node term) {
    const Node unit = b.constant(context.log2_input ? kLog2E : 1);
    sum = b.apply(ScoreOp::add, sum, b.apply(ScoreOp::multiply, unit, term));
  };
  if (a.bias != kNone && !graph::score_mod_reads_bias(a)) add(b.load(context.operands.add(a.bias)));
  if (a.alibi_mask) add(alibi(b, context.q_heads));
  return b.expression(sum);
}

ScoreExpression dot_gradient(const ScoreExpression& score,
                             const std::optional<graph::ScoreModifier>& bprop,
                             const ScoreContext& context) {
  if (!bprop) return problem::derivative_by_dot(score);
  ScoreBuilder builder;
  Translation translation(context, builder);
  // The caller's derivative may read what the forward made on the way.
  translation.run(*context.attributes.score_mod, builder.leaf(ScoreOp::dot));
  return builder.expression(translation.run(*bprop, builder.leaf(ScoreOp::gradient)));
}

ScoreExpression bias_gradient(bool log2_input) {
  ScoreBuilder b;
  return b.expression(
      b.apply(ScoreOp::multiply, b.constant(log2_input ? kLog2E : 1), b.leaf(ScoreOp::gradient)));
}

}  // namespace heddle::fusion
