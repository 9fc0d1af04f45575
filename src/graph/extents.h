// The extents of an attention op, read off its tensors.
#pragma once

#include "graph/graph.h"

namespace heddle::graph {

struct AttentionExtents {
  int64_t batch = 0, q_heads = 0, k_heads = 0, v_heads = 0, q_length = 0, kv_length = 0;
  int64_t qk_head_dim = 0, v_head_dim = 0;
};

/// Numbers in a row of so many elements: codes of 4 bits (u8) are two to an element.
inline int64_t numbers_of_row(DataType type, int64_t elements) {
  return type == DataType::u8 ? 2 * elements : elements;
}
/// Whether a cache of K or V of this type holds codes, numbers once they are scaled.
inline bool holds_codes(DataType type) {
  return type == DataType::i8 || type == DataType::u8 || type == DataType::f8e4m3;
}

/// The extents of an op whose q, k and v have rank 4. Lengths are the padded ones of the dims, or
/// max_seq_len_kv. With
/// paged K and V the kv length is, in this order: paged_max_seq_len_kv, the unpaged side's, the
/// bias's (unless broadcast), the rng dump's, else what the shorter page table covers.
AttentionExtents extents(const Graph& graph, const Sdpa& op);
AttentionExtents extents(const Graph& graph, const SdpaBackward& op);
AttentionExtents extents(const Graph& graph, const SdpaFp8& op);
AttentionExtents extents(const Graph& graph, const SdpaFp8Backward& op);

}  // namespace heddle::graph
