#include "fusion/pointwise_mode.h"

#include "fusion/activation.h"
#include "graph/names.h"

namespace heddle::fusion {

using graph::PointwiseMode;
using problem::ScoreBuilder;
using problem::ScoreOp;

namespace {

ScoreOp score_op(PointwiseMode mode) {
  switch (mode) {
    case PointwiseMode::add:
      return ScoreOp::add;
    case PointwiseMode::sub:
      return ScoreOp::subtract;
    case PointwiseMode::mul:
      return ScoreOp::multiply;
    case PointwiseMode::div:
      return ScoreOp::divide;
    case PointwiseMode::min:
      return ScoreOp::minimum;
    case PointwiseMode::max:
      return ScoreOp::maximum;
    case PointwiseMode::pow:
      return ScoreOp::power;
    case PointwiseMode::mod:
      return ScoreOp::modulo;
    case PointwiseMode::neg:
      return ScoreOp::negate;
    case PointwiseMode::abs:
      return ScoreOp::absolute;
    case PointwiseMode::exp:
      return ScoreOp::exponential;
    case PointwiseMode::log:
      return ScoreOp::logarithm;
    case PointwiseMode::sqrt:
      return ScoreOp::square_root;
    case PointwiseMode::rsqrt:
      return ScoreOp::reciprocal_square_root;
    case PointwiseMode::reciprocal:
      return ScoreOp::reciprocal;
    case PointwiseMode::tanh_fwd:
      return ScoreOp::tangent_hyperbolic;
    case PointwiseMode::sigmoid_fwd:
      return ScoreOp::sigmoid;
    case PointwiseMode::erf:
      return ScoreOp::error_function;
    case PointwiseMode::sin:
      return ScoreOp::sine;
    case PointwiseMode::cos:
      return ScoreOp::cosine;
    case PointwiseMode::tan:
      return ScoreOp::tangent;
    case PointwiseMode::floor:
      return ScoreOp::floor;
    case PointwiseMode::ceil:
      return ScoreOp::ceil;
    case PointwiseMode::cmp_eq:
      return ScoreOp::equal;
    case PointwiseMode::cmp_neq:
      return ScoreOp::not_equal;
    case PointwiseMode::cmp_lt:
      return ScoreOp::less;
    case PointwiseMode::cmp_le:
      return ScoreOp::less_equal;
    case PointwiseMode::cmp_gt:
      return ScoreOp::greater;
    case PointwiseMode::cmp_ge:
      return ScoreOp::greater_equal;
    case PointwiseMode::logical_and:
      return ScoreOp::logical_and;
    case PointwiseMode::logical_or:
      return ScoreOp::logical_or;
    case PointwiseMode::logical_not:
      return ScoreOp::logical_not;
    case PointwiseMode::binary_select:
      return ScoreOp::select;
    default:
      return ScoreOp::dot;  // identity, gen_index and activations are no single ops of an
                            // expression
  }
}

}  // namespace

ScoreBuilder::Node apply_mode(ScoreBuilder& builder, PointwiseMode mode,
                              const graph::ActivationNumbers& numbers, ScoreBuilder::Node a,
                              ScoreBuilder::Node b, ScoreBuilder::Node c) {
  if (mode == PointwiseMode::identity) return a;
  if (graph::is_activation(mode)) return apply_activation(builder, mode, numbers, a, b);
  return builder.apply(score_op(mode), a, b, c);
}

}  // namespace heddle::fusion
