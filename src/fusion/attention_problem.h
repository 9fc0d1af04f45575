// sdpa and sdpa_backward nodes, with the rope nodes around them, as attention problems.
#pragma once

#include "fusion/schedule.h"
#include "graph/graph.h"

namespace heddle::fusion {

/// A rope or rope_backward node absorbed by an attention, and whether anyone reads the tensor
/// between the two (rotated Q or K; the gradient before rotation).
struct AbsorbedRope {
  const graph::Node* node = nullptr;
  bool is_read = false;

  const graph::Rope& rope() const { return std::get<graph::Rope>(node->op); }
};

struct ForwardParts {
  const graph::Node* sdpa = nullptr;
  std::optional<AbsorbedRope> q_rope, k_rope;
};

struct BackwardParts {
  const graph::Node* sdpa_backward = nullptr;
  std::optional<AbsorbedRope> q_rope, k_rope, d_q_rope, d_k_rope;
};

Step attention_step(const graph::Graph& graph, const ForwardParts& parts);
Step attention_backward_step(const graph::Graph& graph, const BackwardParts& parts);

}  // namespace heddle::fusion
