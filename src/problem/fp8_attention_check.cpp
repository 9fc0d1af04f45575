#include "problem/check.h"
#include "problem/check_ids.h"
#include "problem/operand_check.h"
#include "problem/operands.h"

namespace heddle::problem {
namespace {

constexpr std::string_view kFp8 = "fp8 attention";

/// What fp8 attention has beside scores as products and bounds as masks.
Status check_plain(const AttentionStructure& s) {
  const bool is_plain = s.score.is_identity() && s.block_mask == kAbsent && s.sink == kAbsent &&
                        s.dropout.kind == Dropout::Kind::none && s.scores == kAbsent &&
                        s.max == kAbsent && s.sum_exp == kAbsent && !s.q_rope && !s.k_rope &&
                        !s.softmax_input_is_log2 && !s.stats_log2;
  if (is_plain) return {};
  return error(Code::graph_not_supported,
               "fp8 attention: scores are changed, or other results than o and stats are wanted, "
               "which it has none of");
}

/// Of the tensors that products read.
Status check_fp8(const OperandCheck& operands, std::initializer_list<NamedOperand> tensors) {
  for (const auto& [id, name] : tensors)
    HEDDLE_TRY(operands.has_type(id, name, {DataType::f8e4m3, DataType::f8e5m2}));
  return {};
}

Status check_results(const OperandCheck& operands, std::initializer_list<NamedOperand> tensors) {
  for (const auto& [id, name] : tensors) {
    if (id == kAbsent) continue;
    HEDDLE_TRY(operands.has_type(
        id, name,
        {DataType::f8e4m3, DataType::f8e5m2, DataType::f32, DataType::bf16, DataType::f16}));
  }
  return {};
}

/// Each is one f32; those that `is_required` has are there.
template <class Structure>
Status check_scales(const OperandCheck& operands, const Structure& s,
                    std::initializer_list<OperandId> required) {
  HEDDLE_TRY(check_ids(operands, s));
  for (const OperandId id : required) HEDDLE_TRY(operands.is_present(id, "a scale"));
  Status status;
  scales(
      [&](const char* name, OperandId id, Use) {
        if (id == kAbsent || !status.is_ok()) return;
        status = operands.has_type(id, name, {DataType::f32});
        if (status.is_ok()) status = operands.has_dims(id, name, Dims{1, 1, 1, 1});
      },
      s);
  return status;
}

}  // namespace

Status check(const Fp8AttentionProblem& problem) {
  const Fp8AttentionStructure& s = problem.structure;
  const AttentionStructure& a = s.attention;
  HEDDLE_TRY(check(AttentionProblem{a, problem.sizes}));
  HEDDLE_TRY(check_plain(a));
  const OperandCheck operands(kFp8, a.operands, problem.sizes.layouts);
  HEDDLE_TRY(check_scales(operands, s, {s.descale_q, s.descale_k, s.descale_v}));
  if ((s.scale_s == kAbsent) != (s.descale_s == kAbsent))
    return error(Code::attribute_not_set,
                 "fp8 attention: scale_s and descale_s are there both or not at all");
  HEDDLE_TRY(check_fp8(operands, {{a.q, "q"}, {a.k, "k"}, {a.v, "v"}}));
  return check_results(operands, {{a.o, "o"}});
}

Status check(const Fp8AttentionBackwardProblem& problem) {
  const Fp8AttentionBackwardStructure& s = problem.structure;
  const AttentionBackwardStructure& b = s.attention;
  const AttentionStructure& a = b.forward;
  HEDDLE_TRY(check(AttentionBackwardProblem{b, problem.sizes}));
  HEDDLE_TRY(check_plain(a));
  if (a.stats == kAbsent || b.d_stats != kAbsent || !b.load_gradients.empty())
    return error(Code::graph_not_supported,
                 "fp8 attention backward: takes stats, gives dQ, dK and dV, and nothing else");
  const OperandCheck operands(kFp8, a.operands, problem.sizes.layouts);
  HEDDLE_TRY(check_scales(operands, s,
                          {s.descale_q, s.descale_k, s.descale_v, s.descale_o, s.descale_d_o,
                           s.descale_s, s.descale_d_p, s.scale_s, s.scale_d_p}));
  HEDDLE_TRY(check_fp8(operands, {{a.q, "q"}, {a.k, "k"}, {a.v, "v"}, {b.d_o, "dO"}}));
  return check_results(operands, {{a.o, "o"}, {b.d_q, "dQ"}, {b.d_k, "dK"}, {b.d_v, "dV"}});
}

}  // namespace heddle::problem
