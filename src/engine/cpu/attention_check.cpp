#include "engine/cpu/attention_check.h"

#include <algorithm>
#include <span>
#include <string>

#include "engine/cpu/attention_binding.h"
#include "problem/operands.h"

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

}  // namespace

Status check_extents(const AttentionStructure& s, const AttentionSizes& z) {
  for (const auto& [label, extent] : {std::pair{"batch", z.batch},
                                      {"q_heads", z.q_heads},
                                      {"k_heads", z.k_heads},
                                      {"v_heads", z.v_heads},
                                      {"q_length", z.q_length},
                                      {"kv_length", z.kv_length}}) {
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
  return {};
}

namespace {

constexpr DataType kFloats[] = {DataType::f32, DataType::bf16, DataType::f16};
constexpr DataType kWideFloats[] = {DataType::f64, DataType::f32, DataType::bf16, DataType::f16};
/// All that converts to f32 or f64.
constexpr DataType kNumbers[] = {DataType::f64, DataType::f32, DataType::bf16,   DataType::f16,
                                 DataType::i64, DataType::i32, DataType::i8,     DataType::u64,
                                 DataType::u32, DataType::u8,  DataType::boolean};

Status check_type(const AttentionStructure& s, OperandId id, const char* label,
                  std::span<const DataType> allowed) {
  if (id == kAbsent || std::ranges::find(allowed, s.type(id).dtype) != allowed.end()) return {};
  std::string list;
  for (DataType t : allowed) list += (list.empty() ? "" : ", ") + std::string(name(t));
  return error(Code::graph_not_supported, "attention: {} is {}, but the CPU engine takes {}", label,
               name(s.type(id).dtype), list);
}

/// Those that are read or written beside the tensors.
std::span<const DataType> floats_of(const AttentionStructure& s) {
  return is_f64(s) ? std::span<const DataType>(kWideFloats) : std::span<const DataType>(kFloats);
}

/// What is computed in f64 has tensors and statistics in f64: a narrower one would leave less of
/// them than whoever asks for f64 expects.
Status check_f64(const AttentionStructure& s, OperandId id, const char* label) {
  if (!is_f64(s) || id == kAbsent || s.type(id).dtype == DataType::f64) return {};
  return error(
      Code::graph_not_supported,
      "attention: q is f64 and {} {}, but the CPU engine computes in f64 where q, k, v, o, "
      "their gradients and rows' statistics are all f64",
      label, name(s.type(id).dtype));
}

Status check_tensors(const AttentionStructure& s, const std::vector<problem::NamedOperand>& all) {
  for (const auto& [id, name] : all) {
    HEDDLE_TRY(check_f64(s, id, name));
    if (!s.type(id).holds_codes()) HEDDLE_TRY(check_type(s, id, name, floats_of(s)));
  }
  return {};
}

Status check_loads(const AttentionStructure& s, const problem::ScoreExpression& score) {
  Status status;
  const auto visit = [&](const char* label, OperandId id, problem::Use) {
    if (status.is_ok()) status = check_type(s, id, label, kNumbers);
  };
  problem::operands(visit, score);
  return status;
}

Status check_rope(const AttentionStructure& s, const std::optional<problem::Rope>& rope,
                  const char* label, OperandId x) {
  if (!rope || x == kAbsent) return {};
  for (OperandId id : {rope->angles, rope->cosines, rope->sines})
    HEDDLE_TRY(check_type(s, id, "a rope table", floats_of(s)));
  HEDDLE_TRY(check_type(s, rope->rotated, "a rotated tensor", floats_of(s)));
  const problem::OperandType& type = s.type(x);
  if (!type.storage.is_paged() && !type.storage.is_ring() && !type.holds_codes()) return {};
  return error(Code::graph_not_supported, "attention: the CPU engine does not rotate {} {}",
               type.holds_codes()        ? "codes of"
               : type.storage.is_paged() ? "a paged"
                                         : "a ring of",
               label);
}

Status check_forward(const AttentionStructure& s, const AttentionSizes& z) {
  HEDDLE_TRY(check_extents(s, z));
  for (const auto& [label, id] :
       {std::pair{"stats", s.stats}, {"max", s.max}, {"sum_exp", s.sum_exp}})
    HEDDLE_TRY(check_f64(s, id, label));
  HEDDLE_TRY(check_loads(s, s.score));
  HEDDLE_TRY(check_type(s, s.dropout.mask, "the dropout mask", kNumbers));
  HEDDLE_TRY(check_type(s, s.scores, "scores", floats_of(s)));
  HEDDLE_TRY(check_rope(s, s.q_rope, "q", s.q));
  return check_rope(s, s.k_rope, "k", s.k);
}

}  // namespace

Status check(const AttentionProblem& problem) {
  HEDDLE_TRY(check_tensors(problem.structure, problem::tensors_of(problem.structure)));
  return check_forward(problem.structure, problem.sizes);
}

Status check(const AttentionBackwardProblem& problem) {
  const problem::AttentionBackwardStructure& s = problem.structure;
  if (s.largest_d_dot != kAbsent)
    return error(Code::graph_not_supported,
                 "attention backward: the CPU engine does not find the largest gradient of a dot "
                 "product");
  HEDDLE_TRY(check_tensors(s.forward, problem::tensors_of(s)));
  HEDDLE_TRY(check_f64(s.forward, s.d_stats, "dStats"));
  HEDDLE_TRY(check_forward(s.forward, problem.sizes));
  HEDDLE_TRY(check_loads(s.forward, s.d_dot));
  for (const problem::LoadGradient& g : s.load_gradients) {
    HEDDLE_TRY(check_loads(s.forward, g.derivative));
    HEDDLE_TRY(check_type(s.forward, g.gradient, "the gradient of a load", floats_of(s.forward)));
  }
  HEDDLE_TRY(check_rope(s.forward, s.d_q_rope, "dQ", s.d_q));
  return check_rope(s.forward, s.d_k_rope, "dK", s.d_k);
}

}  // namespace heddle::engine::cpu
