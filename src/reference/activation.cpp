#include "reference/activation.h"

#include <cmath>

#include "graph/names.h"

namespace heddle::reference {

using graph::ActivationNumbers;
using graph::PointwiseMode;

namespace {

using Mode = PointwiseMode;

/// An activation at x: its value, and its first and second derivative.
struct Jet {
  double value, slope, curve;
};

double sigmoid_slope(double x) { return sigmoid(x) * (1 - sigmoid(x)); }
double sigmoid_curve(double x) { return sigmoid_slope(x) * (1 - 2 * sigmoid(x)); }

/// Below the lower clip a line, from the upper clip on a constant.
Jet relu(const ActivationNumbers& numbers, double x) {
  const double lower = numbers.relu_lower_clip.value_or(0);
  const std::optional<double> upper = numbers.relu_upper_clip;
  const double slope = numbers.relu_lower_clip_slope.value_or(0);
  if (x <= lower) return {slope == 0 ? lower : lower + slope * (x - lower), slope, 0};
  if (upper && x >= *upper) return {*upper, 0, 0};
  return {x, 1, 0};
}

Jet tanh(double x) {
  const double y = std::tanh(x);
  return {y, 1 - y * y, -2 * y * (1 - y * y)};
}

Jet elu(double alpha, double x) {
  if (x < 0) return {alpha * std::expm1(x), alpha * std::exp(x), alpha * std::exp(x)};
  return {x, 1, 0};
}

Jet gelu(double x) {
  const double below = 0.5 * (1 + std::erf(x / std::sqrt(2)));
  const double density = std::exp(-0.5 * x * x) / std::sqrt(2 * M_PI);
  return {x * below, below + x * density, (2 - x * x) * density};
}

/// x (1 + tanh(u)) / 2.
Jet gelu_approx_tanh(double x) {
  const double c = std::sqrt(2 / M_PI), d = 0.044715 * c;
  const double u = c * x + d * x * x * x, du = c + 3 * d * x * x, ddu = 6 * d * x;
  const Jet t = tanh(u);
  return {0.5 * x * (1 + t.value), 0.5 * (1 + t.value) + 0.5 * x * t.slope * du,
          t.slope * du + 0.5 * x * (t.curve * du * du + t.slope * ddu)};
}

Jet softplus(double beta, double x) {
  const double z = beta * x;
  const double of_z = std::fmax(z, 0) + std::log1p(std::exp(-std::fabs(z)));
  return {std::isnan(z) ? z : of_z / beta, sigmoid(z), beta * sigmoid_slope(z)};
}

Jet swish(double beta, double x) {
  const double z = beta * x;
  return {x * sigmoid(z), sigmoid(z) + z * sigmoid_slope(z),
          beta * (2 * sigmoid_slope(z) + z * sigmoid_curve(z))};
}

/// The activation that the mode is, or is the derivative of.
Jet jet(Mode mode, const ActivationNumbers& numbers, double x) {
  switch (mode) {
    case Mode::relu_fwd:
    case Mode::relu_bwd:
      return relu(numbers, x);
    case Mode::tanh_bwd:
      return tanh(x);
    case Mode::sigmoid_bwd:
      return {sigmoid(x), sigmoid_slope(x), sigmoid_curve(x)};
    case Mode::elu_fwd:
    case Mode::elu_bwd:
      return elu(numbers.elu_alpha.value_or(1), x);
    case Mode::gelu_fwd:
    case Mode::gelu_bwd:
      return gelu(x);
    case Mode::gelu_approx_tanh_fwd:
    case Mode::gelu_approx_tanh_bwd:
      return gelu_approx_tanh(x);
    case Mode::softplus_fwd:
    case Mode::softplus_bwd:
      return softplus(numbers.softplus_beta.value_or(1), x);
    default:
      return swish(numbers.swish_beta.value_or(1), x);
  }
}

bool is_derivative(Mode mode) { return graph::arity(mode) == 2; }

}  // namespace

double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

double apply_activation(Mode mode, const ActivationNumbers& numbers, double a, double b) {
  if (!is_derivative(mode)) return jet(mode, numbers, a).value;
  const double slope = jet(mode, numbers, b).slope;
  // Nothing passes through a flat piece of relu, not of an infinite gradient either.
  return mode == Mode::relu_bwd && slope == 0 ? 0 : a * slope;
}

Partials activation_partials(Mode mode, const ActivationNumbers& numbers, double a, double b) {
  if (!is_derivative(mode)) return {jet(mode, numbers, a).slope};
  const Jet at = jet(mode, numbers, b);
  return {at.slope, a * at.curve};
}

}  // namespace heddle::reference
