#include "graph/extents.h"

#include <algorithm>

#include "graph/without_scales.h"

namespace heddle::graph {
namespace {

int64_t dim(const Graph& graph, TensorId id, int i) {
  return id != kNone && graph[id].dims.rank() == 4 ? graph[id].dims[i] : 0;
}

template <class Op>
AttentionExtents dense_extents(const Graph& graph, const Op& op) {
  const Dims &q = graph[op.q].dims, &k = graph[op.k].dims, &v = graph[op.v].dims;
  return {.batch = q[0],
          .q_heads = q[1],
          .k_heads = k[1],
          .v_heads = v[1],
          .q_length = q[2],
          .kv_length = k[2],
          .qk_head_dim = q[3],
          .v_head_dim = v[3]};
}

int64_t paged_kv_length(const Graph& graph, const Sdpa& op) {
  if (op.paged_max_seq_len_kv) return *op.paged_max_seq_len_kv;
  if (op.page_table_k == kNone) return graph[op.k].dims[2];
  if (op.page_table_v == kNone) return graph[op.v].dims[2];
  if (const int64_t s = dim(graph, op.attention.bias, 3); s > 1) return s;
  if (const int64_t s = dim(graph, op.attention.dropout.rng_dump, 3); s > 0) return s;
  // Block size times table length; saturated, as hostile dims are refused only later.
  const auto covered = [&](TensorId container, TensorId table) {
    int64_t length;
    return __builtin_mul_overflow(graph[container].dims[2], dim(graph, table, 2), &length)
               ? INT64_MAX
               : length;
  };
  return std::min(covered(op.k, op.page_table_k), covered(op.v, op.page_table_v));
}

}  // namespace

AttentionExtents extents(const Graph& graph, const Sdpa& op) {
  AttentionExtents e = dense_extents(graph, op);
  e.v_head_dim = numbers_of_row(*graph[op.v].dtype, e.v_head_dim);
  if (op.page_table_k != kNone || op.page_table_v != kNone) {
    e.kv_length = paged_kv_length(graph, op);
  } else if (op.max_seq_len_kv) {
    e.kv_length = *op.max_seq_len_kv;
  }
  return e;
}

AttentionExtents extents(const Graph& graph, const SdpaBackward& op) {
  return dense_extents(graph, op);
}
AttentionExtents extents(const Graph& graph, const SdpaFp8& op) {
  return extents(graph, without_scales(op));
}
AttentionExtents extents(const Graph& graph, const SdpaFp8Backward& op) {
  return dense_extents(graph, op);
}

}  // namespace heddle::graph
