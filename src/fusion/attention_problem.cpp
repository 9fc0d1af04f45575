#include "fusion/attention_problem.h"

#include <algorithm>

#include "fusion/key_bounds.h"
#include "fusion/operands.h"
#include "fusion/rope_prologue.h"
#include "fusion/score_expression.h"
#include "graph/extents.h"
#include "graph/names.h"
#include "graph/score_reads.h"
#include "problem/score_derivative.h"

namespace heddle::fusion {

using graph::AttentionAttributes;
using graph::Graph;
using graph::kNone;
using graph::TensorId;
using problem::AttentionSizes;
using problem::AttentionStructure;

namespace {

/// Builds what forward and backward share. The operand list is taken over last.
struct Builder {
  const Graph& graph;
  const AttentionAttributes& attributes;
  const graph::AttentionExtents& extents;
  bool log2_input = false;
  Operands operands{graph};
  AttentionStructure structure;
  AttentionSizes sizes;
  problem::ScoreExpression modified;  ///< score_mod, less the masks that became bounds
  Bounds ring_bounds;

  ScoreContext context() {
    const bool known = structure.q_lengths != problem::kAbsent;
    return {graph, attributes, operands, extents.q_heads, log2_input, known};
  }
  void extents_and_scale();
  void keys_and_values(const graph::Sdpa& op, TensorId k);
  void lengths(std::initializer_list<TensorId> rows);
  void scores();
  void dropout();
  void rope(const std::optional<AbsorbedRope>& absorbed, std::optional<problem::Rope>& rope,
            double& scale);
};

void Builder::extents_and_scale() {
  sizes.batch = extents.batch;
  sizes.q_heads = extents.q_heads;
  sizes.k_heads = extents.k_heads;
  sizes.v_heads = extents.v_heads;
  sizes.q_length = extents.q_length;
  sizes.kv_length = extents.kv_length;
  structure.qk_head_dim = static_cast<int32_t>(extents.qk_head_dim);
  structure.v_head_dim = static_cast<int32_t>(extents.v_head_dim);
  structure.softmax_input_is_log2 = log2_input;
  const TensorId scale = attributes.attn_scale_tensor;
  if (scale == kNone) {
    sizes.scale = attributes.attn_scale.value_or(1);
  } else if (graph[scale].constant) {
    sizes.scale = *graph[scale].constant;
  } else {
    structure.scale = operands.add(scale);
  }
}

/// Of a ring the last rows alone are there; of dense K and V those that keys may lie in.
void Builder::keys_and_values(const graph::Sdpa& op, TensorId k) {
  std::optional<int64_t> rows;
  if (op.ring_kv) {
    for (TensorId id : {op.k, op.v})
      ring_bounds.add(/*upper=*/false, problem::Anchor::kv_end, -graph[id].dims[2]);
  } else if (op.max_seq_len_kv) {
    rows = extents.kv_length;
  }
  structure.k = operands.add_cache({k, op.page_table_k, op.k_scale, op.ring_kv, rows});
  structure.v = operands.add_cache({op.v, op.page_table_v, op.v_scale, op.ring_kv, rows});
}

/// Beside a score_mod, lengths of dense tensors are there for its use and mask nothing.
void Builder::lengths(std::initializer_list<TensorId> rows) {
  const bool ragged = std::any_of(rows.begin(), rows.end(), [&](TensorId id) {
    return id != kNone && graph[id].ragged_offset != kNone;
  });
  if (!attributes.padding_mask && !ragged) return;
  structure.q_lengths_cumulative = attributes.cu_seq_len_q != kNone;
  structure.kv_lengths_cumulative = attributes.cu_seq_len_kv != kNone;
  structure.q_lengths =
      operands.add(structure.q_lengths_cumulative ? attributes.cu_seq_len_q : attributes.seq_len_q);
  structure.kv_lengths = operands.add(structure.kv_lengths_cumulative ? attributes.cu_seq_len_kv
                                                                      : attributes.seq_len_kv);
}

void Builder::scores() {
  const ScoreContext scores = context();
  Bounds bounds = diagonal_bounds(attributes);
  modified = without_interval_masks(modified_dot(scores), bounds);
  structure.score = with_additive_terms(modified, scores);
  bounds.add(ring_bounds);
  structure.bounds = bounds.bounds;
  sizes.bound_constants = bounds.constants;
  structure.block_mask = operands.add(attributes.block_mask);
  structure.sink = operands.add(attributes.sink);
}

void Builder::dropout() {
  const graph::Dropout& from = attributes.dropout;
  problem::Dropout& to = structure.dropout;
  if (from.mask != kNone) {
    to.kind = problem::Dropout::Kind::mask;
    to.mask = operands.add(from.mask);
    to.mask_scale = operands.add(from.scale);
    return;
  }
  sizes.dropout_probability = from.probability.value_or(0);
  sizes.dropout_factor = from.factor;
  if (sizes.dropout_probability == 0 && !from.factor && from.rng_dump == kNone) return;
  to.kind = from.threefry ? problem::Dropout::Kind::threefry : problem::Dropout::Kind::philox;
  to.seed = operands.add(from.seed);
  if (!from.threefry) {
    to.offset = operands.add(from.offset);
    to.streams = operands.add(from.streams);
  }
  to.dump = operands.add(from.rng_dump);
  sizes.threefry_strides = from.threefry_strides;
}

void Builder::rope(const std::optional<AbsorbedRope>& absorbed, std::optional<problem::Rope>& rope,
                   double& scale) {
  if (!absorbed) return;
  const graph::Rope& op = absorbed->rope();
  rope = rope_prologue(graph, op, operands);
  const TensorId between = op.backward ? op.x : op.y;
  if (absorbed->is_read) rope->rotated = operands.add(between);
  scale = op.output_scale;
}

/// What the attention reads in the place of `id`: the tensor before its absorbed rope.
TensorId before_rope(TensorId id, const std::optional<AbsorbedRope>& absorbed) {
  return absorbed ? absorbed->rope().x : id;
}

/// Where a gradient ends up: past its absorbed rope_backward.
TensorId after_rope(TensorId id, const std::optional<AbsorbedRope>& absorbed) {
  return absorbed ? absorbed->rope().y : id;
}

void append_names(std::vector<std::string>& names,
                  std::initializer_list<const std::optional<AbsorbedRope>*> ropes) {
  for (const auto* rope : ropes) {
    if (*rope) names.emplace_back(graph::name(*(*rope)->node));
  }
}

}  // namespace

Step attention_step(const Graph& graph, const ForwardParts& parts) {
  const auto& op = std::get<graph::Sdpa>(parts.sdpa->op);
  const graph::AttentionExtents extents = graph::extents(graph, op);
  Builder b{graph, op.attention, extents,
            op.attention.softmax_input_is_log2 || op.attn_scale_prefolded};
  AttentionStructure& s = b.structure;
  b.extents_and_scale();
  s.q = b.operands.add(before_rope(op.q, parts.q_rope));
  b.keys_and_values(op, before_rope(op.k, parts.k_rope));
  b.lengths({op.q, op.k, op.v, op.o, op.stats, op.max, op.sum_exp});
  b.scores();
  b.dropout();
  b.rope(parts.q_rope, s.q_rope, b.sizes.q_rope_scale);
  b.rope(parts.k_rope, s.k_rope, b.sizes.k_rope_scale);
  s.o = b.operands.add(op.o);
  s.stats = b.operands.add(op.stats);
  s.max = b.operands.add(op.max);
  s.sum_exp = b.operands.add(op.sum_exp);
  s.stats_log2 = op.stats_use_log2;
  s.scores = b.operands.add(op.scores);
  s.scores_after_softmax = op.scores_after_softmax;
  s.operands = b.operands.types();
  b.sizes.layouts = b.operands.layouts();
  Step step{problem::AttentionProblem{s, b.sizes}, b.operands.tensors(), {}};
  append_names(step.nodes, {&parts.q_rope, &parts.k_rope});
  step.nodes.emplace_back(graph::name(*parts.sdpa));
  return step;
}

Step attention_backward_step(const Graph& graph, const BackwardParts& parts) {
  const auto& op = std::get<graph::SdpaBackward>(parts.sdpa_backward->op);
  const graph::AttentionExtents extents = graph::extents(graph, op);
  Builder b{graph, op.attention, extents, op.attention.softmax_input_is_log2};
  AttentionStructure& s = b.structure;
  b.extents_and_scale();
  s.q = b.operands.add(before_rope(op.q, parts.q_rope));
  s.k = b.operands.add(before_rope(op.k, parts.k_rope));
  s.v = b.operands.add(op.v);
  s.o = b.operands.add(op.o);
  s.stats = b.operands.add(op.stats);
  s.max = b.operands.add(op.max);
  s.sum_exp = b.operands.add(op.sum_exp);
  b.lengths({op.q, op.k, op.v, op.o, op.d_o, op.stats, op.max, op.sum_exp, op.d_stats, op.d_q,
             op.d_k, op.d_v});
  b.scores();
  b.dropout();
  b.rope(parts.q_rope, s.q_rope, b.sizes.q_rope_scale);
  b.rope(parts.k_rope, s.k_rope, b.sizes.k_rope_scale);

  problem::AttentionBackwardProblem problem;
  problem::AttentionBackwardStructure& backward = problem.structure;
  backward.d_o = b.operands.add(op.d_o);
  backward.d_stats = b.operands.add(op.d_stats);
  backward.d_q = b.operands.add(after_rope(op.d_q, parts.d_q_rope));
  backward.d_k = b.operands.add(after_rope(op.d_k, parts.d_k_rope));
  backward.d_v = b.operands.add(op.d_v);
  backward.d_sink = b.operands.add(op.d_sink);
  if (op.d_bias != kNone) {
    const problem::OperandId bias = b.operands.add(op.attention.bias);
    // Where a kernel sums dBias beside the bias that it reads, both have to be laid out alike.
    const bool is_like_bias = graph[op.d_bias].dims == graph[op.attention.bias].dims;
    backward.load_gradients.push_back(
        {is_like_bias ? bias : problem::kAbsent, b.operands.add(op.d_bias),
         graph::score_mod_reads_bias(op.attention) ? problem::derivative_by_load(b.modified, bias)
                                                   : bias_gradient(b.log2_input)});
  }
  backward.d_dot = dot_gradient(b.modified, op.score_mod_bprop, b.context());
  b.rope(parts.d_q_rope, backward.d_q_rope, problem.d_q_rope_scale);
  b.rope(parts.d_k_rope, backward.d_k_rope, problem.d_k_rope_scale);
  backward.deterministic = op.deterministic;
  backward.whole_rows = op.whole_rows;
  s.operands = b.operands.types();
  b.sizes.layouts = b.operands.layouts();
  backward.forward = s;
  problem.sizes = b.sizes;
  Step step{std::move(problem), b.operands.tensors(), {}};
  append_names(step.nodes, {&parts.q_rope, &parts.k_rope});
  step.nodes.emplace_back(graph::name(*parts.sdpa_backward));
  append_names(step.nodes, {&parts.d_q_rope, &parts.d_k_rope});
  return step;
}

}  // namespace heddle::fusion
