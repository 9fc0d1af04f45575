// The operand list of a problem, filled from a graph's tensors.
#pragma once

#include <vector>

#include "graph/graph.h"
#include "problem/operand.h"

namespace heddle::fusion {

class Operands {
 public:
  explicit Operands(const graph::Graph& graph) : graph_(graph) {}
  /// More operands behind those of a problem.
  Operands(const graph::Graph& graph, std::vector<problem::OperandType> types,
           std::vector<problem::OperandLayout> layouts, std::vector<graph::TensorId> tensors)
      : graph_(graph),
        types_(std::move(types)),
        layouts_(std::move(layouts)),
        tensors_(std::move(tensors)) {}

  /// The operand of a tensor, added on first use with the operands its addressing needs (ragged
  /// offsets); kAbsent for kNone.
  problem::OperandId add(graph::TensorId id);
  /// Like add, with the ones before its dims.
  problem::OperandId add_with_trailing_dims(graph::TensorId id);
  /// Like add, for a K or V as caches store them: in pages that a table names, or in a ring, and
  /// perhaps as codes with scales.
  struct Cache {
    graph::TensorId tensor, table = graph::kNone, scale = graph::kNone;
    bool ring = false;
  };
  problem::OperandId add_cache(const Cache& cache);
  /// Leaves only the first `rows` rows of an operand.
  void keep_rows(problem::OperandId id, int64_t rows);
  /// Like add, with the tensor's dims in the order of `axes`.
  problem::OperandId add_permuted(graph::TensorId id, const std::vector<int>& axes);

  const std::vector<problem::OperandType>& types() const { return types_; }
  const std::vector<problem::OperandLayout>& layouts() const { return layouts_; }
  const std::vector<graph::TensorId>& tensors() const { return tensors_; }

 private:
  const graph::Graph& graph_;
  std::vector<problem::OperandType> types_;
  std::vector<problem::OperandLayout> layouts_;
  std::vector<graph::TensorId> tensors_;
};

}  // namespace heddle::fusion
