#include "engine/cuda/attention_check.h"

#include <algorithm>

#include "engine/cuda/kernel.h"
#include "engine/cuda/number_list.h"
#include "engine/cuda/score_instructions.h"
#include "engine/cuda/score_source.h"

namespace heddle::engine::cuda {

using problem::kAbsent;
using problem::OperandId;

namespace {
/// Queries and keys, and values: a latent of 512 columns, and 64 that are rotated.
constexpr int kMostColumns = 576, kMostValueColumns = 512;
constexpr int64_t kMostRows = INT32_MAX - 256;  // up to the end of their last tile
/// Of all batch entries and heads. No memory holds so many, but a tensor may be broadcast along any
/// dim, and of rows up to here workspaces are counted in 63 bits.
constexpr int64_t kMostRowsOfAll = int64_t{1} << 40;
/// Of a score: twenty sines, which compile in 11 s at d 128. A thousand operations, sines among
/// them, took half a minute, 20000 multiplications more than one, and 1.2 GB.
constexpr size_t kMostInstructions = 2048;

Status check_instructions(const problem::ScoreExpression& expression, bool f32) {
  // What is the same in all cells is no instruction of a cell's, but is compiled too.
  const size_t count = expression.nodes.size() + static_cast<size_t>(instructions(expression, f32));
  if (count <= kMostInstructions) return {};
  return error(Code::graph_not_supported,
               "cuda: a score or its derivative is about {} instructions; kernels take at most {}",
               count, kMostInstructions);
}
}  // namespace

bool is_f32(const problem::AttentionStructure& structure) {
  return structure.type(structure.q).dtype == DataType::f32;
}

bool has_max_and_sum(const problem::AttentionStructure& structure) {
  return structure.max != kAbsent && structure.sum_exp != kAbsent;
}

Status check_dtype(const problem::AttentionStructure& structure, OperandId id, const char* role,
                   std::initializer_list<DataType> allowed) {
  if (id == kAbsent) return {};
  const DataType type = structure.type(id).dtype;
  for (DataType one : allowed) {
    if (type == one) return {};
  }
  std::string list;
  for (DataType one : allowed) list += (list.empty() ? "" : ", ") + std::string(name(one));
  return error(Code::graph_not_supported, "cuda: sdpa {} is {}, expected {}", role, name(type),
               list);
}

Result<DataType> result_type(const problem::AttentionStructure& structure,
                             std::initializer_list<problem::NamedOperand> results) {
  const DataType element = structure.type(structure.q).dtype;
  const problem::NamedOperand* first = nullptr;
  for (const problem::NamedOperand& one : results) {
    if (one.id == kAbsent) continue;
    if (structure.type(one.id).dtype != DataType::f32)
      HEDDLE_TRY(check_dtype(structure, one.id, one.name, {element}));
    if (!first) first = &one;
    if (structure.type(one.id).dtype != structure.type(first->id).dtype) {
      return error(Code::graph_not_supported,
                   "cuda: sdpa {} is {} and {} {}; the kernels write results of one type",
                   first->name, name(structure.type(first->id).dtype), one.name,
                   name(structure.type(one.id).dtype));
    }
  }
  return first ? structure.type(first->id).dtype : element;
}

Result<DataType> result_type_of_backward(const problem::AttentionBackwardStructure& structure) {
  return result_type(structure.forward,
                     {{structure.d_q, "dQ"}, {structure.d_k, "dK"}, {structure.d_v, "dV"}});
}

namespace {

Status check_list(const problem::AttentionSizes& sizes, OperandId id, const char* role) {
  if (id == kAbsent) return {};
  return check_number_list(fmt::format("sdpa {}", role), sizes.layout(id));
}

}  // namespace

Status check_sink(const problem::AttentionStructure& structure,
                  const problem::AttentionSizes& sizes) {
  HEDDLE_TRY(check_dtype(structure, structure.sink, "sink", {DataType::f32}));
  HEDDLE_TRY(check_list(sizes, structure.sink, "sink"));
  if (structure.sink == kAbsent || sizes.layout(structure.sink).dims[1] == sizes.q_heads) return {};
  return error(Code::graph_not_supported, "cuda: sdpa sink is one for {} heads, expected one each",
               sizes.q_heads);
}

Status check_lists_of_lengths(const problem::AttentionStructure& structure,
                              const problem::AttentionSizes& sizes) {
  HEDDLE_TRY(check_list(sizes, structure.q_lengths, "seq_len_q"));
  HEDDLE_TRY(check_list(sizes, structure.kv_lengths, "seq_len_kv"));
  for (const problem::OperandType& type : structure.operands)
    HEDDLE_TRY(check_list(sizes, type.storage.offsets(), "ragged offset"));
  return {};
}

Status check_lengths(const problem::AttentionSizes& sizes, int64_t most) {
  if (sizes.q_length_to_plan_for() <= most && sizes.kv_length_to_plan_for() <= most) return {};
  return error(Code::graph_not_supported,
               "cuda: sdpa has {} rows of queries and {} keys; the kernel counts up to {}",
               sizes.q_length, sizes.kv_length, most);
}

Status check_attention(const problem::AttentionStructure& structure,
                       const problem::AttentionSizes& sizes, bool takes_codes) {
  const auto io = {DataType::bf16, DataType::f16, DataType::f32};
  HEDDLE_TRY(check_dtype(structure, structure.q, "q", io));
  const DataType element = structure.type(structure.q).dtype;
  for (auto [id, role] : {std::pair{structure.k, "k"}, {structure.v, "v"}})
    if (!takes_codes || !structure.type(id).holds_codes())
      HEDDLE_TRY(check_dtype(structure, id, role, {element}));
  HEDDLE_TRY(check_sink(structure, sizes));
  HEDDLE_TRY(check_lists_of_lengths(structure, sizes));
  if (structure.qk_head_dim > kMostColumns || structure.v_head_dim > kMostValueColumns) {
    return error(Code::graph_not_supported,
                 "cuda: sdpa head_dim {} (q, k) and {} (v); kernels take at most {} and {}",
                 structure.qk_head_dim, structure.v_head_dim, kMostColumns, kMostValueColumns);
  }
  if (structure.q_rope || structure.k_rope) {
    return error(Code::graph_not_supported,
                 "cuda: rope inside sdpa is planned as a step before it");
  }
  if (structure.bounds.size() > attention::kMaxBounds) {
    return error(Code::graph_not_supported,
                 "cuda: sdpa has {} bounds on visible keys; the kernel takes at most {}",
                 structure.bounds.size(), attention::kMaxBounds);
  }
  HEDDLE_TRY(check_instructions(structure.score, is_f32(structure)));
  for (OperandId id : {structure.scale, structure.dropout.mask_scale}) {
    if (id != kAbsent && !structure.type(id).on_host) {
      HEDDLE_TRY(check_dtype(structure, id, "scale", {DataType::f32}));
    }
  }
  if (sizes.q_heads > kMostBlocksAcross || sizes.batch * sizes.q_heads > INT32_MAX) {
    return error(
        Code::graph_not_supported,
        "cuda: sdpa has batch {} and {} query heads; the kernel takes at most {} heads and "
        "{} of all batch entries",
        sizes.batch, sizes.q_heads, kMostBlocksAcross, INT32_MAX);
  }
  HEDDLE_TRY(check_lengths(sizes, kMostRows));
  const int64_t rows = sizes.batch * sizes.q_heads * sizes.q_length,
                keys = sizes.batch * std::max(sizes.k_heads, sizes.v_heads) * sizes.kv_length;
  if (rows > kMostRowsOfAll || keys > kMostRowsOfAll) {
    return error(Code::graph_not_supported,
                 "cuda: sdpa has {} query rows and {} keys in all batch entries and heads; kernels "
                 "take up to {} of each",
                 rows, keys, kMostRowsOfAll);
  }
  return {};
}

Status check_head_dims(const problem::AttentionStructure& structure, const char* kernel, int most) {
  if (structure.qk_head_dim <= most && structure.v_head_dim <= most) return {};
  return error(Code::graph_not_supported,
               "cuda: sdpa head_dim {} (q, k) and {} (v); the {} takes at most {}",
               structure.qk_head_dim, structure.v_head_dim, kernel, most);
}

Status check_backward(const problem::AttentionBackwardProblem& problem,
                      const problem::AttentionFacts& facts) {
  const problem::AttentionBackwardStructure& structure = problem.structure;
  const problem::AttentionStructure& forward = structure.forward;
  if (has_max_and_sum(forward) && forward.softmax_input_is_log2 &&
      may_have_finite_mask_rows(forward.score, forward, &facts)) {
    return error(Code::graph_not_supported,
                 "cuda: sdpa_backward has max and sum_exp of scores in log2 units which may be "
                 "huge; the kernel takes stats of these, for maxima are natural");
  }
  HEDDLE_TRY(check_attention(forward, problem.sizes));
  HEDDLE_TRY(check_list(problem.sizes, structure.d_sink, "dSink"));
  HEDDLE_TRY(check_instructions(structure.d_dot, is_f32(forward)));
  for (const problem::LoadGradient& gradient : structure.load_gradients)
    HEDDLE_TRY(check_instructions(gradient.derivative, is_f32(forward)));
  return {};
}

}  // namespace heddle::engine::cuda
