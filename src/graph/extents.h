// The extents of an attention op, read off its tensors.
#pragma once

#include "graph/graph.h"

namespace heddle::graph {

struct AttentionExtents {
  int64_t batch = 0, q_heads = 0, k_heads = 0, v_heads = 0, q_length = 0, kv_length = 0;
  int64_t qk_head_dim = 0, v_head_dim = 0;
};

/// The extents of an op whose q, k and v have rank 4. Lengths are the padded ones of the dims. With
/// paged K and V the kv length is, in this order: paged_max_seq_len_kv, the unpaged side's, the
/// bias's (unless broadcast), the rng dump's, else what the shorter page table covers.
AttentionExtents extents(const Graph& graph, const Sdpa& op);
AttentionExtents extents(const Graph& graph, const SdpaBackward& op);

}  // namespace heddle::graph
