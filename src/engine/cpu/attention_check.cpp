#include "engine/cpu/attention_check.h"

#include <cmath>

#include "core/rounding.h"
#include "engine/cpu/operand_check.h"

namespace heddle::engine::cpu {

using problem::AttentionBackwardProblem;
using problem::AttentionProblem;
using problem::AttentionSizes;
using problem::AttentionStructure;
using problem::kAbsent;
using problem::OperandId;

namespace {

/// Packed panels of a wider head would not fit any cache, and their sizes are products of this.
constexpr int64_t kMaxHeadDim = 8192;

/// Positions are counted in 32 bits (dropout's generators do), and workspace sizes are products of
/// these that stay far from 64 bits.
constexpr int64_t kMaxExtent = INT32_MAX;
constexpr int64_t kMaxElements = int64_t{1} << 48;

Status check_extents(const AttentionStructure& s, const AttentionSizes& z) {
  for (const auto& [label, extent] : {std::pair{"batch", z.batch},
                                      {"q_heads", z.q_heads},
                                      {"k_heads", z.k_heads},
                                      {"v_heads", z.v_heads},
                                      {"q_length", z.q_length},
                                      {"kv_length", z.kv_length}}) {
    if (extent < 0)
      return error(Code::invalid_value, "attention: {} is {}, but must not be negative", label,
                   extent);
    if (extent > kMaxExtent)
      return error(Code::graph_not_supported,
                   "attention: {} is {}, above the CPU engine's limit of {}", label, extent,
                   kMaxExtent);
  }
  const Dims counted{z.batch, z.q_heads, std::max<int64_t>(z.q_length, 1),
                     std::max<int64_t>(z.kv_length, 1)};
  if (!element_count(counted))
    return error(Code::invalid_value,
                 "attention: batch x q_heads x q_length x kv_length of {} overflows 64 bits",
                 to_string(counted));
  for (const auto& [label, dim] :
       {std::pair{"qk_head_dim", s.qk_head_dim}, {"v_head_dim", s.v_head_dim}}) {
    if (dim < 1)
      return error(Code::invalid_value, "attention: {} is {}, but must be at least 1", label, dim);
    if (dim > kMaxHeadDim)
      return error(Code::graph_not_supported,
                   "attention: {} is {}, above the CPU engine's limit of {}", label, dim,
                   kMaxHeadDim);
  }
  for (const int64_t length : {z.q_length, z.kv_length}) {
    const Dims dims{z.batch, z.q_heads, length, std::max(s.qk_head_dim, s.v_head_dim)};
    const auto elements = element_count(dims);
    if (!elements || *elements > kMaxElements)
      return error(Code::graph_not_supported,
                   "attention: a tensor of {} is above the CPU engine's limit of 2^48 elements",
                   to_string(dims));
  }
  if (z.k_heads < 1 || z.v_heads < 1 || z.q_heads % z.k_heads != 0 || z.q_heads % z.v_heads != 0)
    return error(Code::graph_not_supported,
                 "attention: the numbers of key heads ({}) and value heads ({}) must each divide "
                 "that of query heads "
                 "({})",
                 z.k_heads, z.v_heads, z.q_heads);
  return {};
}

Status check_score(const OperandCheck& operands, const problem::ScoreExpression& score,
                   const AttentionSizes& z, const char* label, bool is_derivative) {
  if (score.root < 0 || static_cast<size_t>(score.root) >= score.nodes.size())
    return error(Code::invalid_value, "attention: {} has {} nodes and no node {} for its root",
                 label, score.nodes.size(), score.root);
  for (size_t n = 0; n < score.nodes.size(); ++n) {
    const problem::ScoreNode& node = score.nodes[n];
    const int32_t operand[] = {node.a, node.b, node.c};
    for (int k = 0; k < problem::arity(node.op); ++k) {
      if (operand[k] < 0 || static_cast<size_t>(operand[k]) >= n)
        return error(Code::invalid_value,
                     "attention: node {} ({}) of {} reads node {}, which does not come before it",
                     n, problem::name(node.op), label, operand[k]);
    }
    if (node.op == problem::ScoreOp::gradient && !is_derivative)
      return error(Code::invalid_value,
                   "attention: {} reads the gradient, which only derivatives may", label);
    if (node.op == problem::ScoreOp::load) {
      HEDDLE_TRY(operands.numbers(node.operand, "an operand that the score loads"));
      HEDDLE_TRY(operands.broadcasts(node.operand, "an operand that the score loads",
                                     Dims{z.batch, z.q_heads, z.q_length, z.kv_length}));
    }
  }
  return {};
}

Status check_bounds(const OperandCheck& operands, const AttentionStructure& s,
                    const AttentionSizes& z) {
  if (s.bounds.size() != z.bound_constants.size())
    return error(Code::invalid_value, "attention: {} key bounds but {} bound constants",
                 s.bounds.size(), z.bound_constants.size());
  for (size_t n = 0; n < s.bounds.size(); ++n) {
    if (std::abs(z.bound_constants[n]) > (int64_t{1} << 60))
      return error(Code::invalid_value, "attention: bound constant {} is beyond 2^60",
                   z.bound_constants[n]);
    if (s.bounds[n].anchor != problem::Anchor::operand) continue;
    HEDDLE_TRY(operands.integers(s.bounds[n].operand, "the operand of a key bound"));
    HEDDLE_TRY(operands.broadcasts(s.bounds[n].operand, "the operand of a key bound",
                                   Dims{z.batch, 1, z.q_length, 1}));
  }
  return {};
}

Status check_lengths(const OperandCheck& operands, OperandId id, const char* label, bool cumulative,
                     const AttentionSizes& z) {
  if (id == kAbsent) return {};
  HEDDLE_TRY(operands.integers(id, label));
  return operands.has_entries(id, label, cumulative ? z.batch + 1 : z.batch);
}

Status check_block_mask(const OperandCheck& operands, const AttentionStructure& s,
                        const AttentionSizes& z) {
  if (s.block_mask == kAbsent) return {};
  HEDDLE_TRY(operands.has_type(s.block_mask, "block_mask", {DataType::u8}));
  const int64_t rows = divide_up(z.q_length, 128), bytes = divide_up(z.kv_length, 8 * 128);
  return operands.broadcasts(s.block_mask, "block_mask", Dims{z.batch, z.q_heads, rows, bytes},
                             /*rows_and_columns=*/false);
}

Status check_dropout(const OperandCheck& operands, const AttentionStructure& s,
                     const AttentionSizes& z) {
  const problem::Dropout& d = s.dropout;
  const Dims cells{z.batch, z.q_heads, z.q_length, z.kv_length};
  switch (d.kind) {
    case problem::Dropout::Kind::none:
      return {};
    case problem::Dropout::Kind::mask:
      HEDDLE_TRY(operands.numbers(d.mask, "the dropout mask"));
      HEDDLE_TRY(operands.broadcasts(d.mask, "the dropout mask", cells));
      if (d.mask_scale != kAbsent)
        HEDDLE_TRY(operands.has_type(d.mask_scale, "the dropout scale", {DataType::f32}));
      break;
    case problem::Dropout::Kind::philox:
      HEDDLE_TRY(operands.integers(d.seed, "the dropout seed"));
      if (d.offset != kAbsent) HEDDLE_TRY(operands.integers(d.offset, "the dropout offset"));
      if (d.streams != kAbsent) {
        HEDDLE_TRY(operands.has_type(d.streams, "dropout streams", {DataType::i32}));
        HEDDLE_TRY(operands.has_dims(d.streams, "dropout streams", {z.batch, z.q_heads, 1, 1}));
      }
      break;
    case problem::Dropout::Kind::threefry:
      HEDDLE_TRY(operands.integers(d.seed, "the dropout key"));
      HEDDLE_TRY(operands.has_entries(d.seed, "the dropout key", 2));
      if (z.threefry_strides.rank() != 4)
        return error(Code::invalid_value, "attention: threefry dropout needs 4 strides, not {}",
                     z.threefry_strides.rank());
      break;
  }
  if (d.mask_scale == kAbsent && !(z.dropout_probability >= 0 && z.dropout_probability < 1))
    return error(Code::invalid_value, "attention: dropout probability {} is outside [0, 1)",
                 z.dropout_probability);
  if (d.dump != kAbsent) {
    HEDDLE_TRY(operands.has_type(d.dump, "the dropout dump", {DataType::f32}));
    HEDDLE_TRY(operands.has_dims(d.dump, "the dropout dump", cells));
    HEDDLE_TRY(operands.is_writable(d.dump, "the dropout dump"));
  }
  return {};
}

Status check_rope(const OperandCheck& operands, const std::optional<problem::Rope>& rope,
                  const char* label, OperandId x, int64_t head_dim, int64_t length, double scale,
                  const AttentionSizes& z) {
  if (!rope) return {};
  if (rope->rope_dim < 0 || rope->rope_dim % 2 != 0 || rope->rope_dim > head_dim)
    return error(Code::invalid_value,
                 "attention: rope_dim of {} is {}, but must be even and at most {}", label,
                 rope->rope_dim, head_dim);
  if (!std::isfinite(scale))
    return error(Code::invalid_value, "attention: the rope scale of {} is {}", label, scale);
  const bool tables = rope->cosines != kAbsent && rope->sines != kAbsent;
  if ((rope->angles != kAbsent) == tables)
    return error(Code::invalid_value,
                 "attention: rope of {} needs angles, or cosines and sines, and not both", label);
  for (OperandId id : {rope->angles, rope->cosines, rope->sines}) {
    if (id == kAbsent) continue;
    HEDDLE_TRY(operands.floats(id, "a rope table"));
    const Dims& dims = operands.layout(id).dims;
    if (dims[3] < rope->rope_dim / 2 || (rope->positions == kAbsent && dims[0] < length))
      return error(Code::invalid_value,
                   "attention: a rope table of {} has dims {}, but must be at least [{}, 1, 1, {}]",
                   label, to_string(dims), length, rope->rope_dim / 2);
  }
  if (rope->positions != kAbsent) {
    HEDDLE_TRY(operands.integers(rope->positions, "rope positions"));
    HEDDLE_TRY(operands.broadcasts(rope->positions, "rope positions",
                                   Dims{z.batch, 1, rope->positions_per_row ? length : 1, 1}));
  }
  if (operands.type(x).page_table != kAbsent)
    return error(Code::graph_not_supported, "attention: the CPU engine does not rotate a paged {}",
                 label);
  if (rope->rotated != kAbsent) {
    HEDDLE_TRY(operands.floats(rope->rotated, "a rotated tensor"));
    HEDDLE_TRY(operands.has_dims(rope->rotated, "a rotated tensor", operands.layout(x).dims));
    HEDDLE_TRY(operands.is_writable(rope->rotated, "a rotated tensor"));
  }
  return {};
}

Status check_row_statistic(const OperandCheck& operands, OperandId id, const char* label,
                           const AttentionSizes& z, bool has_lengths) {
  HEDDLE_TRY(operands.has_type(id, label, {DataType::f32}));
  HEDDLE_TRY(operands.has_dims(id, label, Dims{z.batch, z.q_heads, z.q_length, 1}));
  return operands.ragged_has_lengths(id, label, has_lengths);
}

Status check_structure(const OperandCheck& operands, const AttentionStructure& s,
                       const AttentionSizes& z) {
  const bool has_lengths = s.q_lengths != kAbsent && s.kv_lengths != kAbsent;
  HEDDLE_TRY(
      operands.tensor(s.q, "q", Dims{z.batch, z.q_heads, z.q_length, s.qk_head_dim}, has_lengths));
  HEDDLE_TRY(operands.paged_tensor(s.k, "k", Dims{z.batch, z.k_heads, z.kv_length, s.qk_head_dim},
                                   has_lengths));
  HEDDLE_TRY(operands.paged_tensor(s.v, "v", Dims{z.batch, z.v_heads, z.kv_length, s.v_head_dim},
                                   has_lengths));
  HEDDLE_TRY(
      operands.tensor(s.o, "o", Dims{z.batch, z.q_heads, z.q_length, s.v_head_dim}, has_lengths));
  for (const auto& [label, id] :
       {std::pair{"stats", s.stats}, {"max", s.max}, {"sum_exp", s.sum_exp}}) {
    if (id != kAbsent) HEDDLE_TRY(check_row_statistic(operands, id, label, z, has_lengths));
  }
  if (s.scale != kAbsent)
    HEDDLE_TRY(operands.has_type(s.scale, "the attention scale", {DataType::f32}));
  HEDDLE_TRY(check_score(operands, s.score, z, "the score expression", false));
  HEDDLE_TRY(check_bounds(operands, s, z));
  HEDDLE_TRY(check_block_mask(operands, s, z));
  HEDDLE_TRY(check_lengths(operands, s.q_lengths, "q_lengths", s.q_lengths_cumulative, z));
  HEDDLE_TRY(check_lengths(operands, s.kv_lengths, "kv_lengths", s.kv_lengths_cumulative, z));
  if (s.sink != kAbsent) {
    HEDDLE_TRY(operands.has_type(s.sink, "sink", {DataType::f32}));
    HEDDLE_TRY(operands.has_dims(s.sink, "sink", Dims{1, z.q_heads, 1, 1}));
  }
  HEDDLE_TRY(check_dropout(operands, s, z));
  HEDDLE_TRY(
      check_rope(operands, s.q_rope, "q", s.q, s.qk_head_dim, z.q_length, z.q_rope_scale, z));
  return check_rope(operands, s.k_rope, "k", s.k, s.qk_head_dim, z.kv_length, z.k_rope_scale, z);
}

}  // namespace

Status check(const AttentionProblem& problem) {
  const AttentionStructure& s = problem.structure;
  const AttentionSizes& z = problem.sizes;
  HEDDLE_TRY(check_extents(s, z));
  const OperandCheck operands(s.operands, z.layouts);
  HEDDLE_TRY(operands.all_well_formed());
  HEDDLE_TRY(check_structure(operands, s, z));
  for (const auto& [label, id] :
       {std::pair{"o", s.o}, {"stats", s.stats}, {"max", s.max}, {"sum_exp", s.sum_exp}}) {
    if (id != kAbsent) HEDDLE_TRY(operands.is_writable(id, label));
  }
  return {};
}

Status check(const AttentionBackwardProblem& problem) {
  const problem::AttentionBackwardStructure& s = problem.structure;
  const AttentionStructure& f = s.forward;
  const AttentionSizes& z = problem.sizes;
  HEDDLE_TRY(check_extents(f, z));
  const OperandCheck operands(f.operands, z.layouts);
  HEDDLE_TRY(operands.all_well_formed());
  HEDDLE_TRY(check_structure(operands, f, z));
  if (f.stats == kAbsent && (f.max == kAbsent || f.sum_exp == kAbsent))
    return error(Code::graph_not_supported,
                 "attention backward: needs the stats that the forward pass wrote, or its max and "
                 "sum_exp");
  for (const auto& [label, id] : {std::pair{"k", f.k}, {"v", f.v}}) {
    if (operands.type(id).page_table != kAbsent)
      return error(Code::graph_not_supported,
                   "attention backward: {} is paged, which only the forward pass can read", label);
  }
  const bool has_lengths = f.q_lengths != kAbsent && f.kv_lengths != kAbsent;
  HEDDLE_TRY(operands.tensor(s.d_o, "dO", Dims{z.batch, z.q_heads, z.q_length, f.v_head_dim},
                             has_lengths));
  if (s.d_stats != kAbsent)
    HEDDLE_TRY(check_row_statistic(operands, s.d_stats, "dStats", z, has_lengths));
  const Dims q{z.batch, z.q_heads, z.q_length, f.qk_head_dim},
      k{z.batch, z.k_heads, z.kv_length, f.qk_head_dim},
      v{z.batch, z.v_heads, z.kv_length, f.v_head_dim};
  for (const auto& [label, id, dims] :
       {std::tuple{"dQ", s.d_q, q}, {"dK", s.d_k, k}, {"dV", s.d_v, v}}) {
    if (id == kAbsent) continue;
    HEDDLE_TRY(operands.tensor(id, label, dims, has_lengths));
    HEDDLE_TRY(operands.is_writable(id, label));
  }
  HEDDLE_TRY(check_score(operands, s.d_dot, z, "the derivative of the score", true));
  for (const problem::LoadGradient& g : s.load_gradients) {
    HEDDLE_TRY(check_score(operands, g.derivative, z, "the derivative of a load", true));
    HEDDLE_TRY(operands.floats(g.gradient, "the gradient of a load"));
    HEDDLE_TRY(operands.broadcasts(g.gradient, "the gradient of a load",
                                   Dims{z.batch, z.q_heads, z.q_length, z.kv_length}));
    HEDDLE_TRY(operands.is_writable(g.gradient, "the gradient of a load"));
  }
  if (s.d_sink != kAbsent) {
    if (f.sink == kAbsent)
      return error(Code::attribute_not_set,
                   "attention backward: dSink is wanted, but there is no sink");
    HEDDLE_TRY(operands.has_type(s.d_sink, "dSink", {DataType::f32}));
    HEDDLE_TRY(operands.has_dims(s.d_sink, "dSink", Dims{1, z.q_heads, 1, 1}));
    HEDDLE_TRY(operands.is_writable(s.d_sink, "dSink"));
  }
  if (s.d_q != kAbsent)
    HEDDLE_TRY(check_rope(operands, s.d_q_rope, "dQ", s.d_q, f.qk_head_dim, z.q_length,
                          problem.d_q_rope_scale, z));
  if (s.d_k != kAbsent)
    HEDDLE_TRY(check_rope(operands, s.d_k_rope, "dK", s.d_k, f.qk_head_dim, z.kv_length,
                          problem.d_k_rope_scale, z));
  return {};
}

}  // namespace heddle::engine::cpu
