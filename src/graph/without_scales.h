// The attention that one on fp8 operands is beside their scales.
#pragma once

#include "graph/graph.h"

namespace heddle::graph {

inline Sdpa without_scales(const SdpaFp8& op) {
  Sdpa plain;
  plain.q = op.q, plain.k = op.k, plain.v = op.v, plain.o = op.o, plain.stats = op.stats;
  plain.page_table_k = op.page_table_k, plain.page_table_v = op.page_table_v;
  plain.paged_max_seq_len_kv = op.paged_max_seq_len_kv;
  plain.attention = op.attention;
  return plain;
}

inline SdpaBackward without_scales(const SdpaFp8Backward& op) {
  SdpaBackward plain;
  plain.q = op.q, plain.k = op.k, plain.v = op.v, plain.o = op.o, plain.d_o = op.d_o;
  plain.stats = op.stats;
  plain.d_q = op.d_q, plain.d_k = op.d_k, plain.d_v = op.d_v;
  plain.deterministic = op.deterministic;
  plain.attention = op.attention;
  return plain;
}

}  // namespace heddle::graph
