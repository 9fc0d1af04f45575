// The operand list of a problem, filled from a graph's tensors.
#pragma once

#include <optional>
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
        tensors_(std::move(tensors)),
        is_cut_(tensors_.size()) {}

  /// The operand of a tensor, added on first use with the operands its addressing needs (ragged
  /// offsets); kAbsent for kNone. A tensor that is stored, scaled or cut in two ways is two.
  problem::OperandId add(graph::TensorId id);
  /// Like add, with the ones before its dims.
  problem::OperandId add_with_trailing_dims(graph::TensorId id);
  /// Like add, for a K or V as caches store them: in pages that a table names, or in a ring, and
  /// perhaps as codes with scales; or with its first `rows` alone.
  struct Cache {
    graph::TensorId tensor, table = graph::kNone, scale = graph::kNone;
    bool ring = false;
    std::optional<int64_t> rows;
  };
  problem::OperandId add_cache(const Cache& cache);
  /// Like add, with the tensor's dims in the order of `axes`.
  problem::OperandId add_permuted(graph::TensorId id, const std::vector<int>& axes);

  const std::vector<problem::OperandType>& types() const { return types_; }
  const std::vector<problem::OperandLayout>& layouts() const { return layouts_; }
  const std::vector<graph::TensorId>& tensors() const { return tensors_; }

 private:
  /// Numbers by strides or ragged offsets, as all tensors are but caches.
  problem::OperandType plain_type(graph::TensorId id);
  problem::OperandId known_or_new(graph::TensorId id, const problem::OperandType& type, bool is_cut,
                                  const std::vector<int>& axes);

  const graph::Graph& graph_;
  std::vector<problem::OperandType> types_;
  std::vector<problem::OperandLayout> layouts_;
  std::vector<graph::TensorId> tensors_;
  std::vector<bool> is_cut_;  ///< operands of the first rows of their tensors
};

}  // namespace heddle::fusion
