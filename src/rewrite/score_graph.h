// A score expression of the graph (score_mod), op by op.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "graph/graph.h"

namespace heddle::rewrite {

class ScoreGraph {
 public:
  /// `numbers`: the type of its constants, that in which scores are computed.
  ScoreGraph(graph::Graph& graph, DataType numbers);

  graph::TensorId apply(graph::PointwiseMode mode, std::vector<graph::TensorId> inputs,
                        const std::string& result);
  graph::TensorId constant(const std::string& name, double value);

  /// The index along an axis of the scores: 0 batch, 1 head, 2 row, 3 column.
  graph::TensorId index(int axis);

  /// The score becomes cap * tanh(score / cap).
  void cap(double cap);
  void add(graph::TensorId term);
  void multiply(graph::TensorId factor);
  void divide(graph::TensorId by);
  /// The score stays where `predicate` holds; elsewhere it becomes `fill`, or lower by it.
  void replace_where_not(graph::TensorId predicate, double fill);
  void add_where_not(graph::TensorId predicate, double fill);
  /// Elsewhere what it is beside `from` it is beside `to`.
  void raise_where_not(graph::TensorId predicate, double from, double to);
  /// Elsewhere it becomes minus infinity.
  void hide_where_not(graph::TensorId predicate);
  /// Where a truth table over predicates (bit i: predicate i holds) says so; kNone for everywhere.
  graph::TensorId truth(const std::vector<graph::TensorId>& predicates,
                        const std::vector<bool>& table);

  bool is_empty() const { return mod_.ops.empty(); }
  graph::ScoreModifier take();

 private:
  /// A value inside the expression; its name gets a number if it is not the first of that name.
  graph::TensorId inner(const std::string& name);

  graph::Graph& graph_;
  const DataType numbers_;
  std::map<std::string, int> names_;
  graph::ScoreModifier mod_;
  graph::TensorId score_ = graph::kNone;
};

}  // namespace heddle::rewrite
