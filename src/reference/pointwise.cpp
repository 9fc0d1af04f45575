#include "reference/pointwise.h"

#include <cmath>

#include "graph/names.h"
#include "reference/activation.h"
#include "reference/ops.h"

namespace heddle::reference {

using graph::ActivationNumbers;
using graph::kNone;
using graph::PointwiseMode;
using graph::TensorId;

double apply(PointwiseMode mode, const ActivationNumbers& numbers, double a, double b, double c) {
  if (graph::is_activation(mode)) return apply_activation(mode, numbers, a, b);
  switch (mode) {
    case PointwiseMode::identity:
      return a;
    case PointwiseMode::add:
      return a + b;
    case PointwiseMode::sub:
      return a - b;
    case PointwiseMode::mul:
      return a * b;
    case PointwiseMode::div:
      return a / b;
    case PointwiseMode::min:
      return a <= b || std::isnan(a) ? a : b;
    case PointwiseMode::max:
      return a >= b || std::isnan(a) ? a : b;
    case PointwiseMode::pow:
      return std::pow(a, b);
    case PointwiseMode::mod:
      return std::fmod(a, b);
    case PointwiseMode::neg:
      return -a;
    case PointwiseMode::abs:
      return std::fabs(a);
    case PointwiseMode::exp:
      return std::exp(a);
    case PointwiseMode::log:
      return std::log(a);
    case PointwiseMode::sqrt:
      return std::sqrt(a);
    case PointwiseMode::rsqrt:
      return 1 / std::sqrt(a);
    case PointwiseMode::reciprocal:
      return 1 / a;
    case PointwiseMode::tanh_fwd:
      return std::tanh(a);
    case PointwiseMode::sigmoid_fwd:
      return sigmoid(a);
    case PointwiseMode::erf:
      return std::erf(a);
    case PointwiseMode::sin:
      return std::sin(a);
    case PointwiseMode::cos:
      return std::cos(a);
    case PointwiseMode::tan:
      return std::tan(a);
    case PointwiseMode::floor:
      return std::floor(a);
    case PointwiseMode::ceil:
      return std::ceil(a);
    case PointwiseMode::cmp_eq:
      return a == b;
    case PointwiseMode::cmp_neq:
      return a != b;
    case PointwiseMode::cmp_lt:
      return a < b;
    case PointwiseMode::cmp_le:
      return a <= b;
    case PointwiseMode::cmp_gt:
      return a > b;
    case PointwiseMode::cmp_ge:
      return a >= b;
    case PointwiseMode::logical_and:
      return a != 0 && b != 0;
    case PointwiseMode::logical_or:
      return a != 0 || b != 0;
    case PointwiseMode::logical_not:
      return a == 0;
    case PointwiseMode::binary_select:
      return a != 0 ? b : c;
    default:
      return 0;  // gen_index has no inputs
  }
}

Partials partials(PointwiseMode mode, const ActivationNumbers& numbers, double a, double b) {
  if (graph::is_activation(mode)) return activation_partials(mode, numbers, a, b);
  switch (mode) {
    case PointwiseMode::identity:
      return {1};
    case PointwiseMode::add:
      return {1, 1};
    case PointwiseMode::sub:
      return {1, -1};
    case PointwiseMode::mul:
      return {b, a};
    case PointwiseMode::div:
      return {1 / b, -a / (b * b)};
    case PointwiseMode::min:
      return a <= b ? Partials{1, 0} : Partials{0, 1};
    case PointwiseMode::max:
      return a >= b ? Partials{1, 0} : Partials{0, 1};
    case PointwiseMode::pow:
      return {b * std::pow(a, b - 1), std::pow(a, b) * std::log(a == 0 ? 1 : a)};
    case PointwiseMode::mod:
      return {1, -std::trunc(a / b)};
    case PointwiseMode::neg:
      return {-1};
    case PointwiseMode::abs:
      return {static_cast<double>((a > 0) - (a < 0))};
    case PointwiseMode::exp:
      return {std::exp(a)};
    case PointwiseMode::log:
      return {1 / a};
    case PointwiseMode::sqrt:
      return {0.5 / std::sqrt(a)};
    case PointwiseMode::rsqrt:
      return {-0.5 / (a * std::sqrt(a))};
    case PointwiseMode::reciprocal:
      return {-1 / (a * a)};
    case PointwiseMode::tanh_fwd:
      return {1 - std::tanh(a) * std::tanh(a)};
    case PointwiseMode::sigmoid_fwd:
      return {sigmoid(a) * (1 - sigmoid(a))};
    case PointwiseMode::erf:
      return {2 / std::sqrt(M_PI) * std::exp(-a * a)};
    case PointwiseMode::sin:
      return {std::cos(a)};
    case PointwiseMode::cos:
      return {-std::sin(a)};
    case PointwiseMode::tan:
      return {1 + std::tan(a) * std::tan(a)};
    case PointwiseMode::binary_select:
      return a != 0 ? Partials{0, 1, 0} : Partials{0, 0, 1};
    default:
      return {};  // piecewise constant
  }
}

void pointwise(const graph::PointwiseNode& op, Values& values) {
  const Dims& dims = values.tensor(op.y).dims;
  const int64_t count = element_count(dims).value_or(0);
  for (int64_t index = 0; index < count; ++index) {
    int64_t at[4] = {};
    int64_t rest = index;
    for (int axis = dims.rank() - 1; axis >= 0; --axis) {
      at[axis] = rest % dims[axis];
      rest /= dims[axis];
    }
    if (op.mode == PointwiseMode::gen_index) {
      values.write_linear(op.y, static_cast<double>(at[op.axis]), index);
      continue;
    }
    double x[3] = {};
    for (size_t n = 0; n < 3; ++n) {
      const TensorId id = op.inputs()[n];
      if (id != kNone) x[n] = values.read(id, at[0], at[1], at[2], at[3]);
    }
    const double y = apply(op.mode, op.numbers, x[0], x[1], x[2]);
    values.write_linear(op.y, values.precision().accumulated(y), index);
  }
}

}  // namespace heddle::reference
