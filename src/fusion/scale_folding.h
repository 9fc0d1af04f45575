// Folding the attention scale into RoPE: <A R q, R k> = A <R q, R k>, so a rotation that scales its
// output anyway can carry attn_scale, and the factor 1/ln 2 that turns exp into exp2 besides.
#pragma once

#include <cstdint>

#include "core/status.h"
#include "graph/graph.h"

namespace heddle::fusion {

struct ScaleFolding {
  enum class Side : uint8_t {
    q_only,     ///< all of A into the rope of Q
    symmetric,  ///< sqrt A into each of the ropes of Q and K
  };
  Side side = Side::q_only;
  /// Also 1/ln 2 into the rope of Q, with softmax_input_is_log2 on: the forward then raises 2 to
  /// the scores as they are, and the backward's gradients carry ln 2, which rope_backward takes
  /// back.
  bool log2 = false;
};

/// Folds the scale of every sdpa and sdpa_backward of the graph: attn_scale becomes 1, and each
/// rope and rope_backward of a folded side is multiplied by the same factor. Rotated tensors that
/// are bound hold folded values from then on, so fold the forward and the backward graph alike.
///
/// Refuses, and leaves the graph as it was, if the scale is a tensor or (symmetric) negative, if
/// the scores are in log2 units already or (log2) there is a score_mod, if a folded side has no
/// rope, or if something other than the attention reads a tensor whose value would change.
Status fold_scale(graph::Graph& graph, const ScaleFolding& folding);

}  // namespace heddle::fusion
