#include "reference/score_mod.h"

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
  return values.precision().accumulated(apply(op.mode, op.numbers, x[0], x[1], x[2]));
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
    const Partials partial = partials(op->mode, op->numbers, x[0], x[1]);
    const double by_input[3] = {partial.a, partial.b, partial.c};
    for (size_t n = 0; n < op->inputs.size(); ++n) {
      if (by_input[n] != 0) gradients[op->inputs[n]] += at_output * by_input[n];
    }
  }
  return gradients[by];
}

}  // namespace heddle::reference
