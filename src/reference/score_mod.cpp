#include "reference/score_mod.h"

#include <cmath>
#include <optional>
#include <utility>
#include <vector>

#include "reference/pointwise.h"

namespace heddle::reference {

using graph::Pointwise;
using graph::PointwiseMode;
using graph::ScoreModifier;
using graph::TensorId;

namespace {

/// Values of a modifier's own tensors, by tensor.
class Slots {
 public:
  bool contains(TensorId id) const { return place(id) < slots_.size() && slots_[place(id)]; }
  double at(TensorId id) const { return *slots_[place(id)]; }
  /// 0 at first.
  double& operator[](TensorId id) {
    if (place(id) >= slots_.size()) slots_.resize(place(id) + 1);
    std::optional<double>& slot = slots_[place(id)];
    if (!slot) slot = 0;
    return *slot;
  }

 private:
  static size_t place(TensorId id) { return static_cast<size_t>(id); }
  std::vector<std::optional<double>> slots_;
};

/// Partial derivatives of apply() by its inputs.
struct Partials {
  double a = 0, b = 0, c = 0;
};

Partials partials(PointwiseMode mode, double a, double b) {
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
      return {apply(mode, a) * (1 - apply(mode, a))};
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

double input(const Slots& slots, TensorId id, const Cell& cell, const Values& values) {
  return slots.contains(id) ? slots.at(id) : values.read(id, cell.b, cell.h, cell.i, cell.j);
}

double evaluate(const Pointwise& op, const Slots& slots, const Cell& cell, const Values& values) {
  if (op.mode == PointwiseMode::gen_index) {
    const int64_t index[4] = {cell.b, cell.h, cell.i, cell.j};
    return static_cast<double>(index[op.axis]);
  }
  double x[3] = {};
  for (size_t n = 0; n < op.inputs.size(); ++n) x[n] = input(slots, op.inputs[n], cell, values);
  return values.precision().accumulated(apply(op.mode, x[0], x[1], x[2]));
}

Slots evaluate_all(const ScoreModifier& modifier, double score, const Cell& cell,
                   const Values& values, Slots slots = {}) {
  slots[modifier.score_in] = score;
  for (const Pointwise& op : modifier.ops) slots[op.output] = evaluate(op, slots, cell, values);
  return slots;
}

}  // namespace

double modified_score(const ScoreModifier& modifier, double score, const Cell& cell,
                      const Values& values) {
  return evaluate_all(modifier, score, cell, values).at(modifier.score_out);
}

double given_score_gradient(const ScoreModifier& bprop, const ScoreModifier* forward, double score,
                            double gradient, const Cell& cell, const Values& values) {
  Slots known;
  if (forward) known = evaluate_all(*forward, score, cell, values);
  return evaluate_all(bprop, gradient, cell, values, std::move(known)).at(bprop.score_out);
}

double modified_score_gradient(const ScoreModifier& modifier, TensorId by, double score,
                               double gradient, const Cell& cell, const Values& values) {
  const Slots slots = evaluate_all(modifier, score, cell, values);
  Slots gradients;
  gradients[modifier.score_out] = gradient;
  for (auto op = modifier.ops.rbegin(); op != modifier.ops.rend(); ++op) {
    if (!gradients.contains(op->output) || op->inputs.empty()) continue;
    const double at_output = gradients.at(op->output);
    double x[3] = {};
    for (size_t n = 0; n < op->inputs.size(); ++n) x[n] = input(slots, op->inputs[n], cell, values);
    const Partials partial = partials(op->mode, x[0], x[1]);
    const double by_input[3] = {partial.a, partial.b, partial.c};
    for (size_t n = 0; n < op->inputs.size(); ++n) {
      if (by_input[n] != 0) gradients[op->inputs[n]] += at_output * by_input[n];
    }
  }
  return gradients[by];
}

}  // namespace heddle::reference
