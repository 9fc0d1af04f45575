#include <initializer_list>
#include <utility>

#include "graph/validate_attention.h"
#include "graph/without_scales.h"

namespace heddle::graph {
namespace {

using Scalar = std::pair<const char*, TensorId>;

constexpr std::initializer_list<DataType> kFp8 = {DataType::f8e4m3, DataType::f8e5m2};
constexpr std::initializer_list<DataType> kFp8OrWider = {
    DataType::f8e4m3, DataType::f8e5m2, DataType::f16, DataType::bf16, DataType::f32};

/// Descales and scales that are there.
Status validate_scalars(const Rules& rules, std::initializer_list<Scalar> scalars) {
  for (const auto& [port, id] : scalars) {
    if (id == kNone) continue;
    HEDDLE_TRY(rules.is_scalar(port, id));
    HEDDLE_TRY(rules.dtype_is(port, id, {DataType::f32}));
  }
  return {};
}

Status are_present(const Rules& rules, std::initializer_list<Scalar> ports) {
  for (const auto& [port, id] : ports) HEDDLE_TRY(rules.present(port, id));
  return {};
}

/// The largest magnitudes that are wanted.
Status make_amaxes(const Rules& rules, std::initializer_list<Scalar> amaxes) {
  for (const auto& [port, id] : amaxes) {
    if (id == kNone) continue;
    rules.infer(id, {1, 1, 1, 1});
    HEDDLE_TRY(rules.is_scalar(port, id));
    HEDDLE_TRY(rules.dtype_is(port, id, {DataType::f32}));
  }
  return {};
}

/// Scale, lengths and bounds; nothing that changes scores or weights otherwise.
Status validate_attributes(const Rules& rules, AttentionAttributes& a, const AttentionExtents& e,
                           std::initializer_list<TensorId> rows) {
  const std::pair<const char*, bool> declined[] = {
      {"a bias", a.bias != kNone},
      {"alibi_mask", a.alibi_mask},
      {"a score_mod", a.score_mod.has_value()},
      {"a block_mask", a.block_mask != kNone},
      {"dropout", a.dropout != Dropout{}},
      {"a sink", a.sink != kNone},
      {"softmax_input_is_log2", a.softmax_input_is_log2}};
  for (const auto& [what, is_given] : declined) {
    if (!is_given) continue;
    return rules.fail(Code::graph_not_supported,
                      "{} is given, expected none: attention on fp8 operands takes attn_scale, "
                      "padding_mask with lengths, and diagonal bounds",
                      what);
  }
  return validate_attention(rules, a, e, rows);
}

/// dQ, dK or dV: dims of its primal, fp8 or a wider type.
Status validate_gradient(const Rules& rules, const char* port, TensorId id, TensorId primal) {
  if (id == kNone) return {};
  HEDDLE_TRY(rules.makes(port, id, rules[primal].dims, primal));
  HEDDLE_TRY(rules.unit_last_stride(port, id));
  return rules.dtype_is(port, id, kFp8OrWider);
}

Status validate_stats(const Rules& rules, TensorId id, const AttentionExtents& e) {
  return id == kNone ? Status{} : validate_row_statistic(rules, "Stats", id, e, DataType::f32);
}

}  // namespace

Status validate_sdpa_fp8(const Rules& rules, SdpaFp8& op) {
  HEDDLE_TRY(validate_query_key_value(rules, {.q = op.q,
                                              .k = op.k,
                                              .v = op.v,
                                              .paged_k = op.page_table_k != kNone,
                                              .paged_v = op.page_table_v != kNone,
                                              .is_fp8 = true}));
  HEDDLE_TRY(are_present(
      rules,
      {{"descale_q", op.descale_q}, {"descale_k", op.descale_k}, {"descale_v", op.descale_v}}));
  if ((op.descale_s == kNone) != (op.scale_s == kNone)) {
    const bool scale = op.scale_s != kNone;
    return rules.fail(Code::attribute_not_set, "{} is set without {}, expected both or neither",
                      scale ? "scale_s" : "descale_s", scale ? "descale_s" : "scale_s");
  }
  HEDDLE_TRY(validate_scalars(rules, {{"descale_q", op.descale_q},
                                      {"descale_k", op.descale_k},
                                      {"descale_v", op.descale_v},
                                      {"descale_s", op.descale_s},
                                      {"scale_s", op.scale_s},
                                      {"scale_o", op.scale_o}}));
  const AttentionExtents e = extents(rules.graph(), op);
  HEDDLE_TRY(validate_paging(rules, without_scales(op), e));
  HEDDLE_TRY(rules.present("O", op.o));
  HEDDLE_TRY(rules.makes("O", op.o, {e.batch, e.q_heads, e.q_length, e.v_head_dim}));
  HEDDLE_TRY(rules.unit_last_stride("O", op.o));
  HEDDLE_TRY(rules.dtype_is("O", op.o, kFp8OrWider));
  if (op.stats != kNone) rules.infer(op.stats, {e.batch, e.q_heads, e.q_length, 1});
  HEDDLE_TRY(validate_stats(rules, op.stats, e));
  HEDDLE_TRY(make_amaxes(rules, {{"Amax_S", op.amax_s}, {"Amax_O", op.amax_o}}));
  return validate_attributes(rules, op.attention, e, {op.q, op.k, op.v, op.o, op.stats});
}

Status validate_sdpa_fp8_backward(const Rules& rules, SdpaFp8Backward& op) {
  HEDDLE_TRY(validate_query_key_value(rules, {.q = op.q, .k = op.k, .v = op.v, .is_fp8 = true}));
  const AttentionExtents e = extents(rules.graph(), op);
  for (const auto& [port, id] : {std::pair{"O", op.o}, {"dO", op.d_o}}) {
    HEDDLE_TRY(rules.present(port, id));
    HEDDLE_TRY(rules.rank4(port, id));
    HEDDLE_TRY(rules.dims_are(port, id, {e.batch, e.q_heads, e.q_length, e.v_head_dim}));
    HEDDLE_TRY(rules.unit_last_stride(port, id));
  }
  HEDDLE_TRY(rules.dtype_is("dO", op.d_o, kFp8));
  HEDDLE_TRY(rules.dtype_is("O", op.o, kFp8OrWider));
  HEDDLE_TRY(rules.present("Stats", op.stats));
  HEDDLE_TRY(validate_stats(rules, op.stats, e));
  const std::initializer_list<Scalar> required = {
      {"descale_q", op.descale_q},    {"descale_k", op.descale_k},    {"descale_v", op.descale_v},
      {"descale_o", op.descale_o},    {"descale_dO", op.descale_d_o}, {"descale_s", op.descale_s},
      {"descale_dP", op.descale_d_p}, {"scale_s", op.scale_s},        {"scale_dP", op.scale_d_p}};
  HEDDLE_TRY(are_present(rules, required));
  HEDDLE_TRY(validate_scalars(rules, required));
  HEDDLE_TRY(validate_scalars(
      rules, {{"scale_dQ", op.scale_d_q}, {"scale_dK", op.scale_d_k}, {"scale_dV", op.scale_d_v}}));
  if (op.d_q == kNone && op.d_k == kNone && op.d_v == kNone) {
    return rules.fail(Code::attribute_not_set,
                      "None of dQ, dK and dV is wanted, expected at least one");
  }
  HEDDLE_TRY(validate_gradient(rules, "dQ", op.d_q, op.q));
  HEDDLE_TRY(validate_gradient(rules, "dK", op.d_k, op.k));
  HEDDLE_TRY(validate_gradient(rules, "dV", op.d_v, op.v));
  for (const auto& [port, amax, gradient] : {std::tuple{"Amax_dQ", op.amax_d_q, op.d_q},
                                             {"Amax_dK", op.amax_d_k, op.d_k},
                                             {"Amax_dV", op.amax_d_v, op.d_v}}) {
    if (amax != kNone && gradient == kNone)
      return rules.fail(Code::attribute_not_set, "{} is wanted and its gradient is not", port);
  }
  HEDDLE_TRY(make_amaxes(rules, {{"Amax_dQ", op.amax_d_q},
                                 {"Amax_dK", op.amax_d_k},
                                 {"Amax_dV", op.amax_d_v},
                                 {"Amax_dP", op.amax_d_p}}));
  return validate_attributes(rules, op.attention, e,
                             {op.q, op.k, op.v, op.o, op.d_o, op.stats, op.d_q, op.d_k, op.d_v});
}

}  // namespace heddle::graph
