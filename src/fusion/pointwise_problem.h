// Pointwise nodes as problems: each result in memory with the values that lead to it, and results
// that read the same together.
#pragma once

#include <vector>

#include "fusion/schedule.h"
#include "graph/graph.h"

namespace heddle::fusion {

class PointwiseFusion {
 public:
  /// Which results are made together the dims of `planned` say, of the same tensors.
  PointwiseFusion(const graph::Graph& graph, const graph::Graph& planned);

  /// Whether the node at `place` makes a tensor that is in memory. One that does not is part of the
  /// steps of those that read it.
  bool makes_memory(int place) const;

  /// The nodes from `place` on whose results are made together with its own: of the same dims, they
  /// read some of the same tensors, and nothing that is not there when the step at `place` runs.
  /// `runs_at` is the place of the step that each node is part of; those of the nodes become
  /// `place`.
  std::vector<int> together_with(int place, std::vector<int>& runs_at) const;

  /// The step of these nodes.
  Step step(const std::vector<int>& places) const;

 private:
  const graph::PointwiseNode& node(int place) const;
  bool is_between(graph::TensorId id) const { return between_[static_cast<size_t>(id)]; }
  /// Tensors that lead to the node's result, ascending: values between nodes, and what is loaded.
  std::vector<graph::TensorId> reads(int place) const;

  const graph::Graph &graph_, &planned_;
  std::vector<bool> between_;
  std::vector<int> maker_;
};

}  // namespace heddle::fusion
