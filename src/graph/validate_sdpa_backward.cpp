#include "graph/validate_attention.h"

namespace heddle::graph {
namespace {

/// dQ, dK or dV: dims of its primal, its type or f32.
Status validate_gradient(const Rules& rules, const char* port, TensorId id, TensorId primal) {
  if (id == kNone) return {};
  HEDDLE_TRY(rules.makes(port, id, rules[primal].dims, primal));
  HEDDLE_TRY(rules.unit_last_stride(port, id));
  return rules.dtype_is(port, id, {*rules[primal].dtype, DataType::f32});
}

/// Stats, or Max and Sum_exp; perhaps the gradient of their log-sum-exp.
Status validate_statistics(const Rules& rules, const SdpaBackward& op, const AttentionExtents& e) {
  if (op.stats == kNone && op.max == kNone && op.sum_exp == kNone) {
    return rules.fail(Code::attribute_not_set,
                      "None of Stats, Max and Sum_exp is set, expected Stats, or Max and Sum_exp");
  }
  if ((op.max == kNone) != (op.sum_exp == kNone)) {
    const bool max = op.max != kNone;
    return rules.fail(Code::attribute_not_set, "{} is set without {}, expected both or Stats",
                      max ? "Max" : "Sum_exp", max ? "Sum_exp" : "Max");
  }
  if (op.stats != kNone && op.max != kNone) {
    return rules.fail(Code::invalid_value,
                      "Stats is set beside Max and Sum_exp, expected one form of the rows' "
                      "statistics");
  }
  for (const auto& [port, id] : {std::pair{"Stats", op.stats},
                                 {"Max", op.max},
                                 {"Sum_exp", op.sum_exp},
                                 {"dStats", op.d_stats}}) {
    if (id != kNone) HEDDLE_TRY(validate_row_statistic(rules, port, id, e, *rules[op.q].dtype));
  }
  return {};
}

}  // namespace

Status validate_sdpa_backward(const Rules& rules, SdpaBackward& op) {
  HEDDLE_TRY(validate_query_key_value(rules, {op.q, op.k, op.v}));
  const AttentionExtents e = extents(rules.graph(), op);
  for (const auto& [port, id] : {std::pair{"O", op.o}, {"dO", op.d_o}}) {
    HEDDLE_TRY(rules.present(port, id));
    HEDDLE_TRY(rules.rank4(port, id));
    HEDDLE_TRY(rules.dims_are(port, id, {e.batch, e.q_heads, e.q_length, e.v_head_dim}));
    HEDDLE_TRY(rules.unit_last_stride(port, id));
    HEDDLE_TRY(rules.dtype_is(port, id, {*rules[op.q].dtype, DataType::f32}));
  }
  HEDDLE_TRY(validate_statistics(rules, op, e));

  AttentionAttributes& a = op.attention;
  if (op.d_q == kNone && op.d_k == kNone && op.d_v == kNone && op.d_bias == kNone &&
      op.d_sink == kNone) {
    return rules.fail(Code::attribute_not_set,
                      "None of dQ, dK, dV, dBias and dSink is wanted, expected at least one");
  }
  HEDDLE_TRY(validate_gradient(rules, "dQ", op.d_q, op.q));
  HEDDLE_TRY(validate_gradient(rules, "dK", op.d_k, op.k));
  HEDDLE_TRY(validate_gradient(rules, "dV", op.d_v, op.v));
  HEDDLE_TRY(validate_attention(rules, a, e,
                                {op.q, op.k, op.v, op.o, op.d_o, op.stats, op.max, op.sum_exp,
                                 op.d_stats, op.d_q, op.d_k, op.d_v}));
  if (op.d_bias != kNone) {
    if (a.bias == kNone)
      return rules.fail(Code::attribute_not_set, "dBias is set without a bias to differentiate by");
    rules.infer(op.d_bias, rules[a.bias].dims, a.bias);
    HEDDLE_TRY(
        rules.broadcasts_to("dBias", op.d_bias, {e.batch, e.q_heads, e.q_length, e.kv_length}));
    HEDDLE_TRY(rules.dtype_is("dBias", op.d_bias, {*rules[a.bias].dtype, DataType::f32}));
  }
  if (op.d_sink != kNone) {
    if (a.sink == kNone)
      return rules.fail(Code::attribute_not_set, "If dsink is set, sink also needs to be set.");
    HEDDLE_TRY(rules.makes("dSink", op.d_sink, {1, e.q_heads, 1, 1}));
    HEDDLE_TRY(rules.number_beside("dSink", op.d_sink, *rules[op.q].dtype));
  }
  if (op.score_mod_bprop) {
    if (!a.score_mod) {
      return rules.fail(Code::attribute_not_set,
                        "score_mod_bprop is set without the score_mod it differentiates");
    }
    HEDDLE_TRY(
        validate_score_modifier(rules, "score_mod_bprop", *op.score_mod_bprop, e, &*a.score_mod));
  }
  return {};
}

}  // namespace heddle::graph
