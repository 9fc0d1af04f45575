#include "problem/check.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "core/rounding.h"
#include "problem/check_ids.h"
#include "problem/operand_check.h"
#include "problem/operands.h"

namespace heddle::problem {
namespace {

Status check_tables(const OperandCheck& operands, std::string_view op, const Rope& rope,
                    std::string_view of, const Dims& x, double scale) {
  if (rope.rope_dim < 0 || rope.rope_dim % 2 != 0 || rope.rope_dim > x[3])
    return error(Code::invalid_value, "{}: rope_dim{} is {}, expected an even number up to {}", op,
                 of, rope.rope_dim, x[3]);
  if (rope.first_column < 0 || rope.first_column > x[3] - rope.rope_dim)
    return error(Code::invalid_value,
                 "{}: rope{} begins at column {}, expected one from 0 to {}, as it turns {} of {}",
                 op, of, rope.first_column, x[3] - rope.rope_dim, rope.rope_dim, x[3]);
  if (!std::isfinite(scale))
    return error(Code::invalid_value, "{}: the scale of rope{} is {}, expected a finite number", op,
                 of, scale);
  const bool tables = rope.cosines != kAbsent && rope.sines != kAbsent;
  if ((rope.angles != kAbsent) == tables)
    return error(Code::invalid_value, "{}: rope{} takes angles, or cosines and sines, and not both",
                 op, of);
  const int64_t rows = rope.positions == kAbsent ? x[2] : 1;
  for (const auto& [label, id] :
       {std::pair{"angles", rope.angles}, {"cosines", rope.cosines}, {"sines", rope.sines}}) {
    if (id == kAbsent) continue;
    const Dims& dims = operands.layout(id).dims;
    if (dims[0] < rows || dims[3] < rope.rope_dim / 2)
      return error(Code::invalid_value, "{}: {}{} has dims {}, expected at least [{}, 1, 1, {}]",
                   op, label, of, to_string(dims), rows, rope.rope_dim / 2);
  }
  if (tables)
    HEDDLE_TRY(operands.has_dims(rope.sines, "sines", operands.layout(rope.cosines).dims));
  if (rope.positions == kAbsent) return {};
  HEDDLE_TRY(operands.is_integer(rope.positions, "positions"));
  const int64_t batch = operands.layout(rope.positions).dims[0] == 1 ? 1 : x[0];
  return operands.has_dims(rope.positions, "positions",
                           Dims{batch, 1, rope.positions_per_row ? x[2] : 1, 1});
}

// Attention ---------------------------------------------------------------------------------------

constexpr std::string_view kAttention = "attention", kBackward = "attention backward";

/// A number beside Q: f32, or f64 too beside f64.
Status check_number(const OperandCheck& operands, const AttentionStructure& s, OperandId id,
                    const char* label) {
  if (operands.type(s.q).dtype == DataType::f64)
    return operands.has_type(id, label, {DataType::f32, DataType::f64});
  return operands.has_type(id, label, {DataType::f32});
}

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
  }
  for (const auto& [label, dim] :
       {std::pair{"qk_head_dim", s.qk_head_dim}, {"v_head_dim", s.v_head_dim}}) {
    if (dim < 1)
      return error(Code::invalid_value, "attention: {} is {}, but must be at least 1", label, dim);
  }
  if (z.k_heads < 1 || z.v_heads < 1 || z.q_heads % z.k_heads != 0 || z.q_heads % z.v_heads != 0)
    return error(Code::graph_not_supported,
                 "attention: the numbers of key heads ({}) and value heads ({}) must each divide "
                 "that of query heads ({})",
                 z.k_heads, z.v_heads, z.q_heads);
  return {};
}

Status check_nodes(std::string_view op, const char* label, const std::vector<ScoreNode>& nodes) {
  for (size_t n = 0; n < nodes.size(); ++n) {
    const ScoreNode& node = nodes[n];
    const int32_t of[] = {node.a, node.b, node.c};
    for (int k = 0; k < arity(node.op); ++k) {
      if (of[k] < 0 || static_cast<size_t>(of[k]) >= n)
        return error(Code::invalid_value,
                     "{}: node {} ({}) of {} reads node {}, which does not come before it", op, n,
                     name(node.op), label, of[k]);
    }
  }
  return {};
}

Status check_score(const OperandCheck& operands, const ScoreExpression& score, const Dims& cells,
                   const char* label, bool is_derivative) {
  if (score.root < 0 || static_cast<size_t>(score.root) >= score.nodes.size())
    return error(Code::invalid_value, "attention: {} has {} nodes and no node {} for its root",
                 label, score.nodes.size(), score.root);
  HEDDLE_TRY(check_nodes(kAttention, label, score.nodes));
  for (const ScoreNode& node : score.nodes) {
    if (node.op == ScoreOp::gradient && !is_derivative)
      return error(Code::invalid_value,
                   "attention: {} reads the gradient, which only derivatives may", label);
    if (node.op == ScoreOp::load) {
      HEDDLE_TRY(operands.is_present(node.operand, "an operand that the score loads"));
      HEDDLE_TRY(operands.broadcasts(node.operand, "an operand that the score loads", cells));
    }
  }
  return {};
}

Status check_bounds(const AttentionStructure& s, const AttentionSizes& z) {
  if (s.bounds.size() != z.bound_constants.size())
    return error(Code::invalid_value, "attention: {} key bounds but {} bound constants",
                 s.bounds.size(), z.bound_constants.size());
  for (const int64_t constant : z.bound_constants) {
    if (constant < -(int64_t{1} << 60) || constant > (int64_t{1} << 60))
      return error(Code::invalid_value, "attention: bound constant {} is beyond 2^60", constant);
  }
  return {};
}

Status check_lengths(const OperandCheck& operands, OperandId id, const char* label, bool cumulative,
                     int64_t batch) {
  if (id == kAbsent) return {};
  HEDDLE_TRY(operands.is_integer(id, label));
  return operands.has_entries(id, label, cumulative ? batch + 1 : batch);
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
  const Dropout& d = s.dropout;
  const Dims cells{z.batch, z.q_heads, z.q_length, z.kv_length};
  switch (d.kind) {
    case Dropout::Kind::none:
      return {};
    case Dropout::Kind::mask:
      HEDDLE_TRY(operands.is_present(d.mask, "the dropout mask"));
      HEDDLE_TRY(operands.broadcasts(d.mask, "the dropout mask", cells));
      if (d.mask_scale != kAbsent)
        HEDDLE_TRY(check_number(operands, s, d.mask_scale, "the dropout scale"));
      break;
    case Dropout::Kind::philox:
      HEDDLE_TRY(operands.is_present(d.seed, "the dropout seed"));
      HEDDLE_TRY(operands.is_integer(d.seed, "the dropout seed"));
      if (d.offset != kAbsent) HEDDLE_TRY(operands.is_integer(d.offset, "the dropout offset"));
      if (d.streams != kAbsent) {
        HEDDLE_TRY(operands.has_type(d.streams, "dropout streams", {DataType::i32}));
        HEDDLE_TRY(operands.has_dims(d.streams, "dropout streams", {z.batch, z.q_heads, 1, 1}));
      }
      break;
    case Dropout::Kind::threefry:
      HEDDLE_TRY(operands.is_present(d.seed, "the dropout key"));
      HEDDLE_TRY(operands.is_integer(d.seed, "the dropout key"));
      HEDDLE_TRY(operands.has_entries(d.seed, "the dropout key", 2));
      if (z.threefry_strides.rank() != 4)
        return error(Code::invalid_value, "attention: threefry dropout needs 4 strides, not {}",
                     z.threefry_strides.rank());
      break;
  }
  if (d.mask_scale == kAbsent && !(z.dropout_probability >= 0 && z.dropout_probability < 1))
    return error(Code::invalid_value, "attention: dropout probability {} is outside [0, 1)",
                 z.dropout_probability);
  if (z.dropout_factor && !std::isfinite(*z.dropout_factor))
    return error(Code::invalid_value, "attention: dropout factor {}, expected a finite number",
                 *z.dropout_factor);
  if (d.dump == kAbsent) return {};
  HEDDLE_TRY(operands.has_type(d.dump, "the dropout dump", {DataType::f32}));
  return operands.has_dims(d.dump, "the dropout dump", cells);
}

Status check_rope(const OperandCheck& operands, const std::optional<Rope>& rope, const char* of,
                  OperandId x, const Dims& dims, double scale) {
  if (!rope || x == kAbsent) return {};
  HEDDLE_TRY(check_tables(operands, kAttention, *rope, fmt::format(" of {}", of), dims, scale));
  if (rope->rotated == kAbsent) return {};
  return operands.has_dims(rope->rotated, "a rotated tensor", operands.layout(x).dims);
}

/// Dims of the tensors that are as long as the queries or keys.
struct TensorDims {
  TensorDims(const AttentionStructure& s, const AttentionSizes& z)
      : q{z.batch, z.q_heads, z.q_length, s.qk_head_dim},
        k{z.batch, z.k_heads, z.kv_length, s.qk_head_dim},
        v{z.batch, z.v_heads, z.kv_length, s.v_head_dim},
        o{z.batch, z.q_heads, z.q_length, s.v_head_dim} {}
  Dims q, k, v, o;
};

Status check_row_statistic(const OperandCheck& operands, const AttentionStructure& s, OperandId id,
                           const char* label, const AttentionSizes& z, bool has_lengths) {
  if (id == kAbsent) return {};
  HEDDLE_TRY(check_number(operands, s, id, label));
  HEDDLE_TRY(operands.has_dims(id, label, Dims{z.batch, z.q_heads, z.q_length, 1}));
  return operands.ragged_has_lengths(id, label, has_lengths);
}

/// Of forward and backward, whose ids have been looked at.
Status check_forward(const OperandCheck& operands, const AttentionStructure& s,
                     const AttentionSizes& z) {
  const bool has_lengths = s.q_lengths != kAbsent && s.kv_lengths != kAbsent;
  const TensorDims dims(s, z);
  for (const auto& [label, id] : {std::pair{"q", s.q}, {"k", s.k}, {"v", s.v}, {"o", s.o}})
    HEDDLE_TRY(operands.is_present(id, label));
  HEDDLE_TRY(operands.is_tensor(s.q, "q", dims.q, has_lengths));
  HEDDLE_TRY(operands.is_cache(s.k, "k", dims.k, has_lengths));
  HEDDLE_TRY(operands.is_cache(s.v, "v", dims.v, has_lengths));
  HEDDLE_TRY(operands.is_tensor(s.o, "o", dims.o, has_lengths));
  for (const auto& [label, id] :
       {std::pair{"stats", s.stats}, {"max", s.max}, {"sum_exp", s.sum_exp}})
    HEDDLE_TRY(check_row_statistic(operands, s, id, label, z, has_lengths));
  if (s.scores != kAbsent)
    HEDDLE_TRY(
        operands.has_dims(s.scores, "scores", Dims{z.batch, z.q_heads, z.q_length, z.kv_length}));
  if (s.scale != kAbsent) HEDDLE_TRY(check_number(operands, s, s.scale, "the attention scale"));
  const Dims cells{z.batch, z.q_heads, z.q_length, z.kv_length};
  HEDDLE_TRY(check_score(operands, s.score, cells, "the score expression", false));
  HEDDLE_TRY(check_bounds(s, z));
  HEDDLE_TRY(check_block_mask(operands, s, z));
  HEDDLE_TRY(check_lengths(operands, s.q_lengths, "q_lengths", s.q_lengths_cumulative, z.batch));
  HEDDLE_TRY(check_lengths(operands, s.kv_lengths, "kv_lengths", s.kv_lengths_cumulative, z.batch));
  if (s.sink != kAbsent) {
    const DataType type = operands.type(s.sink).dtype;
    if (type != DataType::bf16 && type != DataType::f16)
      HEDDLE_TRY(check_number(operands, s, s.sink, "sink"));
    const int64_t heads = operands.layout(s.sink).dims[1] == 1 ? 1 : z.q_heads;
    HEDDLE_TRY(operands.has_dims(s.sink, "sink", Dims{1, heads, 1, 1}));
  }
  HEDDLE_TRY(check_dropout(operands, s, z));
  HEDDLE_TRY(check_rope(operands, s.q_rope, "q", s.q, dims.q, z.q_rope_scale));
  return check_rope(operands, s.k_rope, "k", s.k, dims.k, z.k_rope_scale);
}

// Rows --------------------------------------------------------------------------------------------

/// Every operand has x's dims, or those of its rows or columns alone.
template <class Norm>
Status check_norm(const Norm& problem, std::initializer_list<const char*> required) {
  const auto& s = problem.structure;
  const char* const op = norm_name(s);
  const OperandCheck check(op, s.operands, problem.sizes.layouts);
  HEDDLE_TRY(check.all_well_formed(kAnyRank));
  HEDDLE_TRY(check_ids(check, s));
  Status status;
  const auto each = [&](auto&& visit) {
    tensors(
        [&](std::string_view label, OperandId id, Use, RowPart part) {
          if (status.is_ok()) status = visit(label, id, part);
        },
        s);
    return status;
  };
  HEDDLE_TRY(each([&](std::string_view label, OperandId id, RowPart) -> Status {
    const bool is_required = std::find(required.begin(), required.end(), label) != required.end();
    return is_required ? check.is_present(id, label) : Status{};
  }));
  const Dims& x = check.layout(s.x).dims;
  if (s.normalised_dims < 1 || s.normalised_dims > x.rank())
    return error(Code::invalid_value, "{}: {} dims are normalised, of the {} that x has", op,
                 s.normalised_dims, x.rank());
  if (!element_count(x))
    return error(Code::invalid_value, "{}: x has dims {}, whose product overflows 64 bits", op,
                 to_string(x));
  if constexpr (requires { s.centred; }) {
    if (!s.centred && s.mean != kAbsent)
      return error(Code::invalid_value, "rms_norm: a mean is given, which only layer_norm has");
  } else if (s.normalised_dims == x.rank()) {
    return error(Code::invalid_value, "{}: all {} dims are normalised, expected one of channels",
                 op, x.rank());
  }
  return each([&](std::string_view label, OperandId id, RowPart part) -> Status {
    if (id == kAbsent) return {};
    Dims expected = x;
    const int rows = x.rank() - s.normalised_dims;
    for (int d = 0; d < x.rank(); ++d) {
      const bool has = part == RowPart::whole || (part == RowPart::column && d >= rows) ||
                       (part == RowPart::row && d < rows) ||
                       (part == RowPart::channel && d == rows - 1);
      if (!has) expected[d] = 1;
    }
    return check.has_dims(id, label, expected);
  });
}

// Elements ----------------------------------------------------------------------------------------

Status check_element(const OperandCheck& operands, OperandId id, const char* label) {
  if (operands.type(id).storage.kind != Storage::Kind::dense || operands.type(id).holds_codes())
    return error(Code::invalid_value, "pointwise: {} is no dense tensor of numbers", label);
  return operands.has_type(
      id, label, {DataType::f32, DataType::bf16, DataType::f16, DataType::i32, DataType::boolean});
}

}  // namespace

Status check(const AttentionProblem& problem) {
  const AttentionStructure& s = problem.structure;
  const AttentionSizes& z = problem.sizes;
  HEDDLE_TRY(check_extents(s, z));
  const OperandCheck operands(kAttention, s.operands, z.layouts);
  HEDDLE_TRY(operands.all_well_formed(4));
  HEDDLE_TRY(check_ids(operands, s));
  return check_forward(operands, s, z);
}

Status check(const AttentionBackwardProblem& problem) {
  const AttentionBackwardStructure& s = problem.structure;
  const AttentionStructure& f = s.forward;
  const AttentionSizes& z = problem.sizes;
  HEDDLE_TRY(check_extents(f, z));
  const OperandCheck operands(kBackward, f.operands, z.layouts);
  HEDDLE_TRY(operands.all_well_formed(4));
  HEDDLE_TRY(check_ids(operands, s));
  HEDDLE_TRY(check_forward(operands, f, z));
  if (f.stats == kAbsent && (f.max == kAbsent || f.sum_exp == kAbsent))
    return error(Code::graph_not_supported,
                 "attention backward: needs the stats that the forward pass wrote, or its max and "
                 "sum_exp");
  for (const auto& [label, id] : {std::pair{"k", f.k}, {"v", f.v}}) {
    const OperandType& type = operands.type(id);
    if (type.storage.is_paged() || type.storage.is_ring() || type.holds_codes())
      return error(Code::graph_not_supported,
                   "attention backward: {} is {}, which only the forward pass can read", label,
                   type.holds_codes()       ? "codes"
                   : type.storage.is_ring() ? "a ring"
                                            : "paged");
  }
  const bool has_lengths = f.q_lengths != kAbsent && f.kv_lengths != kAbsent;
  const TensorDims dims(f, z);
  HEDDLE_TRY(operands.is_present(s.d_o, "dO"));
  for (const auto& [label, id, expected] : {std::tuple{"dO", s.d_o, dims.o},
                                            {"dQ", s.d_q, dims.q},
                                            {"dK", s.d_k, dims.k},
                                            {"dV", s.d_v, dims.v}}) {
    if (id != kAbsent) HEDDLE_TRY(operands.is_tensor(id, label, expected, has_lengths));
  }
  HEDDLE_TRY(check_row_statistic(operands, f, s.d_stats, "dStats", z, has_lengths));
  const Dims cells{z.batch, z.q_heads, z.q_length, z.kv_length};
  HEDDLE_TRY(check_score(operands, s.d_dot, cells, "the derivative of the score", true));
  for (const LoadGradient& g : s.load_gradients) {
    HEDDLE_TRY(check_score(operands, g.derivative, cells, "the derivative of a load", true));
    HEDDLE_TRY(operands.is_present(g.gradient, "the gradient of a load"));
    HEDDLE_TRY(operands.broadcasts(g.gradient, "the gradient of a load", cells));
  }
  if (s.largest_d_dot != kAbsent) {
    HEDDLE_TRY(operands.is_present(s.d_k, "dK"));
    HEDDLE_TRY(operands.has_type(s.largest_d_dot, "the largest gradient of a dot product",
                                 {DataType::f32}));
    HEDDLE_TRY(operands.has_dims(s.largest_d_dot, "the largest gradient of a dot product",
                                 Dims{1, 1, 1, 1}));
  }
  if (s.d_sink != kAbsent) {
    if (f.sink == kAbsent)
      return error(Code::attribute_not_set,
                   "attention backward: dSink is wanted, but there is no sink");
    HEDDLE_TRY(check_number(operands, f, s.d_sink, "dSink"));
    HEDDLE_TRY(operands.has_dims(s.d_sink, "dSink", Dims{1, z.q_heads, 1, 1}));
  }
  HEDDLE_TRY(check_rope(operands, s.d_q_rope, "dQ", s.d_q, dims.q, problem.d_q_rope_scale));
  return check_rope(operands, s.d_k_rope, "dK", s.d_k, dims.k, problem.d_k_rope_scale);
}

Status check(const NormProblem& problem) {
  const NormStructure& s = problem.structure;
  if (s.residual == kAbsent && (s.residual_bias != kAbsent || s.sum != kAbsent))
    return error(Code::invalid_value, "{}: a {} is given without a residual", norm_name(s),
                 s.sum == kAbsent ? "residual bias" : "sum");
  return check_norm(problem, {"x", "weight", "y"});
}
Status check(const ChannelNormProblem& problem) {
  const ChannelNormStructure& s = problem.structure;
  const OperandId running[] = {s.running_mean, s.running_var, s.next_mean, s.next_var};
  const auto is_absent = [](OperandId id) { return id == kAbsent; };
  if (std::ranges::any_of(running, is_absent) != std::ranges::all_of(running, is_absent))
    return error(Code::invalid_value,
                 "{}: some running statistics are given and some are not, expected all or none",
                 norm_name(s));
  return check_norm(problem, {"x", "weight", "y"});
}
Status check(const ChannelNormBackwardProblem& problem) {
  return check_norm(problem, {"x", "dy", "weight", "mean", "inv_rms"});
}
Status check(const NormBackwardProblem& problem) {
  if (!problem.structure.centred) return check_norm(problem, {"x", "dy", "weight", "inv_rms"});
  return check_norm(problem, {"x", "dy", "weight", "mean", "inv_rms"});
}

Status check(const RopeProblem& problem) {
  const RopeStructure& s = problem.structure;
  const OperandCheck operands("rope", s.operands, problem.sizes.layouts);
  HEDDLE_TRY(operands.all_well_formed(4));
  HEDDLE_TRY(check_ids(operands, s));
  HEDDLE_TRY(operands.is_present(s.x, "x"));
  HEDDLE_TRY(operands.is_present(s.y, "y"));
  const Dims& x = operands.layout(s.x).dims;
  HEDDLE_TRY(operands.has_dims(s.y, "y", x));
  if (!element_count(x))
    return error(Code::invalid_value, "rope: x has dims {}, more elements than 63 bits count",
                 to_string(x));
  return check_tables(operands, "rope", s.rope, "", x, problem.sizes.scale);
}

Status check(const PointwiseProblem& problem) {
  const PointwiseStructure& s = problem.structure;
  const OperandCheck operands("pointwise", s.operands, problem.sizes.layouts);
  HEDDLE_TRY(operands.all_well_formed(4));
  HEDDLE_TRY(check_ids(operands, s));
  if (s.results.empty()) return error(Code::invalid_value, "pointwise: there is no result");
  std::vector<OperandId> written;
  for (const PointwiseStructure::Result& result : s.results) {
    HEDDLE_TRY(operands.is_present(result.y, "a result"));
    HEDDLE_TRY(check_element(operands, result.y, "a result"));
    HEDDLE_TRY(operands.has_dims(result.y, "a result", problem.dims()));
    if (result.node < 0 || static_cast<size_t>(result.node) >= s.nodes.size())
      return error(Code::invalid_value, "pointwise: a result is node {}, of only {}", result.node,
                   s.nodes.size());
    if (std::ranges::find(written, result.y) != written.end())
      return error(Code::invalid_value, "pointwise: operand {} is written twice", result.y);
    written.push_back(result.y);
  }
  if (!element_count(problem.dims()))
    return error(Code::invalid_value,
                 "pointwise: results have dims {}, more elements than 63 bits count",
                 to_string(problem.dims()));
  if (s.nodes.size() > kMostPointwiseNodes)
    return error(
        Code::graph_not_supported,
        "pointwise: one step has {} ops, expected at most {}: give it a tensor in memory on "
        "the way",
        s.nodes.size(), kMostPointwiseNodes);
  HEDDLE_TRY(check_nodes("pointwise", "the program", s.nodes));
  for (const ScoreNode& node : s.nodes) {
    if (node.op == ScoreOp::dot || node.op == ScoreOp::gradient || node.op == ScoreOp::q_length ||
        node.op == ScoreOp::kv_length)
      return error(Code::invalid_value, "pointwise: a node is {}, which only scores have",
                   name(node.op));
    if (node.op != ScoreOp::load) continue;
    HEDDLE_TRY(operands.is_present(node.operand, "an input"));
    HEDDLE_TRY(check_element(operands, node.operand, "an input"));
    const Dims& dims = operands.layout(node.operand).dims;
    for (int d = 0; d < 4; ++d) {
      if (dims[d] != 1 && dims[d] != problem.dims()[d])
        return error(Code::invalid_value,
                     "pointwise: an input has dims {}, which do not broadcast to {}",
                     to_string(dims), to_string(problem.dims()));
    }
  }
  return {};
}

Status check(const Problem& problem) {
  return std::visit([](const auto& one) { return check(one); }, problem);
}

}  // namespace heddle::problem
