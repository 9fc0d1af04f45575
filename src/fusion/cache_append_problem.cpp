#include "fusion/cache_append_problem.h"

#include <algorithm>

#include "fusion/operands.h"
#include "graph/names.h"

namespace heddle::fusion {

using graph::CacheAppend;
using graph::Graph;
using graph::kNone;

namespace {

/// Rows that an entry may have: those of the caches, or that their tables name; of a ring any.
int64_t capacity_of(const Graph& graph, const CacheAppend& op) {
  if (op.ring || op.present_k == kNone) return INT32_MAX;
  const auto rows = [&](graph::TensorId cache, graph::TensorId table) {
    const int64_t pages = table == kNone ? 1 : graph[table].dims[2];
    return std::min<int64_t>(graph[cache].dims[2] * pages, INT32_MAX);
  };
  return std::min(rows(op.present_k, op.page_table_k), rows(op.present_v, op.page_table_v));
}

}  // namespace

Step cache_append_step(const Graph& graph, const graph::Node& node) {
  const auto& op = std::get<CacheAppend>(node.op);
  Operands operands(graph);
  problem::CacheAppendProblem problem;
  problem::CacheAppendStructure& s = problem.structure;
  problem::CacheAppendSizes& z = problem.sizes;
  s.q = operands.add(op.q);
  s.k = operands.add(op.k);
  s.v = operands.add(op.v);
  s.past_k = operands.add_cache({op.past_k, op.page_table_k, op.k_scale, op.ring});
  s.past_v = operands.add_cache({op.past_v, op.page_table_v, op.v_scale, op.ring});
  s.k_cache = operands.add_cache({op.present_k, op.page_table_k, op.k_scale, op.ring});
  s.v_cache = operands.add_cache({op.present_v, op.page_table_v, op.v_scale, op.ring});
  s.q_out = operands.add(op.q_out);
  s.new_lengths = operands.add(op.seq_len_q);
  s.total_lengths = operands.add(op.seq_len_kv);
  s.q_norm = operands.add(op.q_norm);
  s.k_norm = operands.add(op.k_norm);
  s.cosines = operands.add(op.cosines);
  s.sines = operands.add(op.sines);
  s.positions = operands.add(op.positions);
  s.lengths_q = operands.add(op.lengths_q);
  s.lengths_kv = operands.add(op.lengths_kv);
  s.rope_dim = op.cosines == kNone ? 0 : static_cast<int32_t>(2 * graph[op.cosines].dims[3]);
  s.pairing = op.pairing == graph::RopePairing::halves ? problem::Rope::Pairing::halves
                                                       : problem::Rope::Pairing::interleaved;
  const Dims& q = graph[op.q].dims;
  s.qk_head_dim = static_cast<int32_t>(q[3]);
  s.v_head_dim = static_cast<int32_t>(op.v == kNone ? q[3] : graph[op.v].dims[3]);
  z.batch = q[0], z.length = q[2];
  z.kv_heads = op.present_k == kNone ? 0 : graph[op.present_k].dims[1];
  z.q_heads = q[1] - (op.k == kNone ? 2 * z.kv_heads : 0);
  z.capacity = capacity_of(graph, op);
  z.total_offset = op.seq_len_kv_offset;
  z.q_epsilon = op.q_epsilon, z.k_epsilon = op.k_epsilon;
  s.operands = operands.types();
  z.layouts = operands.layouts();
  return {std::move(problem), operands.tensors(), {std::string(graph::name(node))}};
}

}  // namespace heddle::fusion
