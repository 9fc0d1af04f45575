// The operand list of a problem, filled from a graph's tensors.
#pragma once

#include <vector>

#include "graph/graph.h"
#include "problem/operand.h"

namespace heddle::fusion {

class Operands {
 public:
  explicit Operands(const graph::Graph& graph) : graph_(graph) {}

  /// The operand of a tensor, added on first use with the operands its addressing needs (ragged
  /// offsets); kAbsent for kNone.
  problem::OperandId add(graph::TensorId id);
  /// Like add, for a K or V container addressed through a page table.
  problem::OperandId add_paged(graph::TensorId container, graph::TensorId table);
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
