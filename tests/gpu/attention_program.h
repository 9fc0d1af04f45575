// Programs of one attention of dense tensors, whose numbers and attributes a test says.
#pragma once

#include <functional>

#include "gpu/gpu_test.h"

namespace heddle::testing {

struct AttentionShape {
  DataType dtype = DataType::bf16;
  int64_t heads = 2, rows = 70, keys = 90, head_dim = 64;
  bool backward = false;

  Dims queries() const { return {1, heads, rows, head_dim}; }
  Dims cells() const { return {1, heads, rows, keys}; }
  friend std::ostream& operator<<(std::ostream& out, const AttentionShape& shape);
};

enum class Input : uint8_t { q, k, v, d_o };
/// What an element of `row` is, given a normal number.
using Value = std::function<double(Input input, int64_t row, double normal)>;
/// Sets attributes, and adds the operands that they name.
using Change = std::function<void(Program&, graph::AttentionAttributes&)>;

/// With `backward` that node alone, of the definition's O and log-sum-exp, with the gradient of a
/// sink, if there is one. Else the forward, with `statistics` and its log-sum-exp. The scale is
/// 1/sqrt(head_dim) unless `change` sets another.
Program attention_program(const AttentionShape& shape, const Change& change = {},
                          const Value& value = {}, bool statistics = true);

/// The steps of a score_mod, in f32, whose result is the last one's.
class ScoreSteps {
 public:
  /// `cells` are [1, head, row, key].
  ScoreSteps(Program& program, const Dims& cells);
  graph::TensorId score() const { return modifier_.score_in; }
  graph::TensorId constant(double value);
  graph::TensorId apply(graph::PointwiseMode mode, std::vector<graph::TensorId> inputs);
  const graph::ScoreModifier& modifier() const { return modifier_; }

 private:
  graph::TensorId cell();
  Program& program_;
  Dims cells_;
  graph::ScoreModifier modifier_;
};

}  // namespace heddle::testing
