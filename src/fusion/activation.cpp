#include "fusion/activation.h"

#include <cmath>

namespace heddle::fusion {

using graph::ActivationNumbers;
using graph::PointwiseMode;
using problem::ScoreBuilder;
using problem::ScoreOp;

namespace {

using Node = ScoreBuilder::Node;

/// gelu_approx_tanh is x / (1 + e^-u), where its 1 + tanh would cancel; u = x (c + d x^2).
const double kLinear = 2 * std::sqrt(2 / M_PI), kCubic = 0.044715 * kLinear;
/// From here on the sigmoid of u is 0 or 1, in f64 too, and powers of x may overflow.
constexpr double kSaturated = 32;

class Activation {
 public:
  Activation(ScoreBuilder& builder, const ActivationNumbers& numbers)
      : b_(builder), numbers_(numbers) {}

  Node relu(Node x) const {
    const Node above =
        upper() ? select(ScoreOp::greater_equal, x, *upper(), number(*upper()), x) : x;
    // Without a slope there is none of an infinity either.
    const Node below =
        slope() == 0 ? number(lower())
                     : plus(number(lower()), times(number(slope()), minus(x, number(lower()))));
    return select(ScoreOp::less_equal, x, lower(), below, above);
  }
  Node relu_bwd(Node dy, Node x) const {
    const Node above = upper() ? select(ScoreOp::greater_equal, x, *upper(), number(0), dy) : dy;
    const Node below = slope() == 0 ? number(0) : times(number(slope()), dy);
    return select(ScoreOp::less_equal, x, lower(), below, above);
  }

  Node tanh_bwd(Node dy, Node x) const {
    const Node y = op(ScoreOp::tangent_hyperbolic, x);
    return times(dy, minus(number(1), times(y, y)));
  }
  Node sigmoid_bwd(Node dy, Node x) const { return times(dy, sigmoid_slope(sigmoid(x))); }

  Node elu(Node x) const {
    const Node below = times(number(alpha()), op(ScoreOp::exponential_minus_one, x));
    return select(ScoreOp::less, x, 0, below, x);
  }
  Node elu_bwd(Node dy, Node x) const {
    const Node below = times(dy, times(number(alpha()), op(ScoreOp::exponential, x)));
    return select(ScoreOp::less, x, 0, below, dy);
  }

  Node gelu(Node x) const { return times(x, normal_cdf(x)); }
  Node gelu_bwd(Node dy, Node x) const {
    const Node exponent = times(number(-0.5), times(x, x));
    const Node density = times(number(1 / std::sqrt(2 * M_PI)), op(ScoreOp::exponential, exponent));
    return times(dy, plus(normal_cdf(x), times(x, density)));
  }

  Node gelu_approx_tanh(Node x) const { return times(x, sigmoid(of_sigmoid(clamped(x)))); }
  Node gelu_approx_tanh_bwd(Node dy, Node x) const {
    const Node near = clamped(x);
    const Node s = sigmoid(of_sigmoid(near));
    const Node slope = plus(number(kLinear), times(number(3 * kCubic), times(near, near)));
    return times(dy, plus(s, times(x, times(slope, sigmoid_slope(s)))));
  }

  /// ln(1 + e^(beta x)) / beta, with no e^ that may overflow. |z| is a maximum, as at 0 its slope
  /// is to be one of the two: with the line's it makes 1/2.
  Node softplus(Node x) const {
    const Node z = times(number(softplus_beta()), x);
    const Node small = op(ScoreOp::exponential, negative(op(ScoreOp::maximum, z, negative(z))));
    const Node line = op(softplus_beta() > 0 ? ScoreOp::maximum : ScoreOp::minimum, x, number(0));
    return plus(line, times(number(1 / softplus_beta()), op(ScoreOp::logarithm_plus_one, small)));
  }
  Node softplus_bwd(Node dy, Node x) const {
    return times(dy, sigmoid(times(number(softplus_beta()), x)));
  }

  Node swish(Node x) const { return times(x, sigmoid(times(number(swish_beta()), x))); }
  Node swish_bwd(Node dy, Node x) const {
    const Node s = sigmoid(times(number(swish_beta()), x));
    return times(dy, plus(s, times(x, times(number(swish_beta()), sigmoid_slope(s)))));
  }

 private:
  double lower() const { return numbers_.relu_lower_clip.value_or(0); }
  std::optional<double> upper() const { return numbers_.relu_upper_clip; }
  double slope() const { return numbers_.relu_lower_clip_slope.value_or(0); }
  double alpha() const { return numbers_.elu_alpha.value_or(1); }
  double softplus_beta() const { return numbers_.softplus_beta.value_or(1); }
  double swish_beta() const { return numbers_.swish_beta.value_or(1); }

  Node op(ScoreOp o, Node x, Node y = -1) const { return b_.apply(o, x, y); }
  Node number(double value) const { return b_.constant(value); }
  Node plus(Node x, Node y) const { return op(ScoreOp::add, x, y); }
  Node minus(Node x, Node y) const { return op(ScoreOp::subtract, x, y); }
  Node times(Node x, Node y) const { return op(ScoreOp::multiply, x, y); }
  Node negative(Node x) const { return op(ScoreOp::negate, x); }
  Node sigmoid(Node x) const { return op(ScoreOp::sigmoid, x); }
  Node select(ScoreOp predicate, Node x, double bound, Node then, Node otherwise) const {
    return b_.apply(ScoreOp::select, op(predicate, x, number(bound)), then, otherwise);
  }

  Node sigmoid_slope(Node s) const { return times(s, minus(number(1), s)); }
  /// Of the normal distribution.
  Node normal_cdf(Node x) const {
    const Node erf = op(ScoreOp::error_function, times(number(std::sqrt(0.5)), x));
    return times(number(0.5), plus(number(1), erf));
  }
  Node clamped(Node x) const {
    return op(ScoreOp::minimum, op(ScoreOp::maximum, x, number(-kSaturated)), number(kSaturated));
  }
  Node of_sigmoid(Node x) const {
    return times(x, plus(number(kLinear), times(number(kCubic), times(x, x))));
  }

  ScoreBuilder& b_;
  const ActivationNumbers& numbers_;
};

}  // namespace

Node apply_activation(ScoreBuilder& builder, PointwiseMode mode, const ActivationNumbers& numbers,
                      Node a, Node b) {
  const Activation activation(builder, numbers);
  switch (mode) {
    case PointwiseMode::relu_fwd:
      return activation.relu(a);
    case PointwiseMode::relu_bwd:
      return activation.relu_bwd(a, b);
    case PointwiseMode::tanh_bwd:
      return activation.tanh_bwd(a, b);
    case PointwiseMode::sigmoid_bwd:
      return activation.sigmoid_bwd(a, b);
    case PointwiseMode::elu_fwd:
      return activation.elu(a);
    case PointwiseMode::elu_bwd:
      return activation.elu_bwd(a, b);
    case PointwiseMode::gelu_fwd:
      return activation.gelu(a);
    case PointwiseMode::gelu_bwd:
      return activation.gelu_bwd(a, b);
    case PointwiseMode::gelu_approx_tanh_fwd:
      return activation.gelu_approx_tanh(a);
    case PointwiseMode::gelu_approx_tanh_bwd:
      return activation.gelu_approx_tanh_bwd(a, b);
    case PointwiseMode::softplus_fwd:
      return activation.softplus(a);
    case PointwiseMode::softplus_bwd:
      return activation.softplus_bwd(a, b);
    case PointwiseMode::swish_fwd:
      return activation.swish(a);
    case PointwiseMode::swish_bwd:
      return activation.swish_bwd(a, b);
    default:
      return a;  // is_activation() lists them
  }
}

}  // namespace heddle::fusion
