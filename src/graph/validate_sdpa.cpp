#include <bit>

#include "graph/validate_attention.h"

namespace heddle::graph {
namespace {

/// One of K and V as a container of pages, with its table.
Status validate_pages(const Rules& rules, const char* container_port, TensorId container,
                      const char* table_port, TensorId table, const AttentionExtents& e) {
  if (table == kNone) {
    if (rules[container].dims[2] == e.kv_length) return {};
    return rules.fail(Code::invalid_value,
                      "{} has sequence length {}, expected {} as the paged side", container_port,
                      rules[container].dims[2], e.kv_length);
  }
  const int64_t block = rules[container].dims[2];
  if (!std::has_single_bit(static_cast<uint64_t>(block))) {
    return rules.fail(Code::invalid_value, "The pages of {} have {} rows, expected a power of 2",
                      container_port, block);
  }
  if (rules[container].ragged_offset != kNone) {
    return rules.fail(Code::invalid_value,
                      "{} is paged and ragged, expected at most one of the two", container_port);
  }
  HEDDLE_TRY(rules.dtype_is(table_port, table, {DataType::i32}));
  const Dims expected{e.batch, 1, (e.kv_length + block - 1) / block, 1};
  const Dims& given = rules[table].dims;
  if (given.rank() == 4 && given[0] == expected[0] && given[1] == 1 && given[2] >= expected[2] &&
      given[3] == 1)
    return {};
  return rules.dims_are(table_port, table, expected);
}

/// Keys there are at most, of dense K and V and of rings.
Status validate_key_rows(const Rules& rules, const Sdpa& op) {
  const int64_t rows = rules[op.k].dims[2];
  if (op.page_table_k != kNone || op.page_table_v != kNone) {
    if (!op.max_seq_len_kv && !op.ring_kv) return {};
    return rules.fail(Code::graph_not_supported,
                      "{} is set beside page tables, which have paged_max_seq_len_kv",
                      op.ring_kv ? "ring_kv" : "max_seq_len_kv");
  }
  if (op.ring_kv && !op.max_seq_len_kv) {
    return rules.fail(Code::attribute_not_set,
                      "ring_kv is set without max_seq_len_kv: the rows of a ring do not say how "
                      "many keys there are");
  }
  if (op.ring_kv && (rules[op.k].ragged_offset != kNone || rules[op.v].ragged_offset != kNone)) {
    return rules.fail(Code::invalid_value, "K and V are rings and ragged, expected one of the two");
  }
  const int64_t most = op.ring_kv ? INT32_MAX : rows;
  if (!op.max_seq_len_kv || (*op.max_seq_len_kv >= 1 && *op.max_seq_len_kv <= most)) return {};
  return rules.fail(Code::invalid_value, "max_seq_len_kv is {}, expected 1 to {}",
                    *op.max_seq_len_kv, most);
}

Status validate_prefolded(const Rules& rules, const Sdpa& op) {
  const AttentionAttributes& a = op.attention;
  if (!op.attn_scale_prefolded) return {};
  if (a.attn_scale || a.attn_scale_tensor != kNone) {
    return rules.fail(Code::invalid_value,
                      "attn_scale_prefolded is set and so is attn_scale, which Q already carries");
  }
  if (a.softmax_input_is_log2) {
    return rules.fail(Code::invalid_value,
                      "attn_scale_prefolded and softmax_input_is_log2 are both set, expected one: "
                      "each says that the "
                      "scores are in log2 units");
  }
  if (a.score_mod) {
    return rules.fail(Code::graph_not_supported,
                      "score_mod and attn_scale_prefolded are both set: a score expression is "
                      "written for natural "
                      "scores, expected one of the two");
  }
  return {};
}

}  // namespace

Status validate_paging(const Rules& rules, const Sdpa& op, const AttentionExtents& e) {
  const bool paged = op.page_table_k != kNone || op.page_table_v != kNone;
  if (!paged) {
    if (!op.paged_max_seq_len_kv) return {};
    return rules.fail(Code::graph_not_supported,
                      "When not using paged attention, there is no need to explicitly set max kv "
                      "sequence length.");
  }
  const AttentionAttributes& a = op.attention;
  if (!a.padding_mask) {
    return rules.fail(Code::graph_not_supported,
                      "Paged caches can only be used in combination with padding mask and variable "
                      "sequence lengths "
                      "for both Q and KV.");
  }
  if (e.kv_length < 1 || e.kv_length > INT32_MAX) {
    return rules.fail(Code::invalid_value, "The paged kv length is {}, expected 1 to {}",
                      e.kv_length, INT32_MAX);
  }
  HEDDLE_TRY(validate_pages(rules, "K", op.k, "page_table_k", op.page_table_k, e));
  return validate_pages(rules, "V", op.v, "page_table_v", op.page_table_v, e);
}

Status validate_sdpa(const Rules& rules, Sdpa& op) {
  HEDDLE_TRY(validate_query_key_value(rules, {.q = op.q,
                                              .k = op.k,
                                              .v = op.v,
                                              .paged_k = op.page_table_k != kNone,
                                              .paged_v = op.page_table_v != kNone,
                                              .may_hold_codes = true}));
  HEDDLE_TRY(validate_scales(rules, "K", op.k, "k_scale", op.k_scale));
  HEDDLE_TRY(validate_scales(rules, "V", op.v, "v_scale", op.v_scale));
  HEDDLE_TRY(validate_key_rows(rules, op));
  const AttentionExtents e = extents(rules.graph(), op);
  HEDDLE_TRY(validate_paging(rules, op, e));
  HEDDLE_TRY(validate_prefolded(rules, op));

  HEDDLE_TRY(rules.present("O", op.o));
  rules.infer(op.o, {e.batch, e.q_heads, e.q_length, e.v_head_dim});
  HEDDLE_TRY(rules.rank4("O", op.o));
  HEDDLE_TRY(rules.dims_are("O", op.o, {e.batch, e.q_heads, e.q_length, e.v_head_dim}));
  HEDDLE_TRY(rules.unit_last_stride("O", op.o));
  HEDDLE_TRY(rules.dtype_is("O", op.o, {*rules[op.q].dtype, DataType::f32}));
  for (const auto& [port, id] :
       {std::pair{"Stats", op.stats}, {"Max", op.max}, {"Sum_exp", op.sum_exp}}) {
    if (id == kNone) continue;
    rules.infer(id, {e.batch, e.q_heads, e.q_length, 1});
    HEDDLE_TRY(validate_row_statistic(rules, port, id, e, *rules[op.q].dtype));
  }
  if (op.scores != kNone) {
    rules.infer(op.scores, {e.batch, e.q_heads, e.q_length, e.kv_length});
    HEDDLE_TRY(rules.rank4("scores", op.scores));
    HEDDLE_TRY(rules.dims_are("scores", op.scores, {e.batch, e.q_heads, e.q_length, e.kv_length}));
    HEDDLE_TRY(rules.dtype_is("scores", op.scores, {*rules[op.q].dtype, DataType::f32}));
    if (rules[op.scores].ragged_offset != kNone)
      return rules.fail(Code::graph_not_supported, "scores is ragged, expected a dense tensor");
  } else if (op.scores_after_softmax) {
    return rules.fail(Code::attribute_not_set,
                      "scores_after_softmax is set without scores to write");
  }
  if (op.stats_use_log2 && op.stats == kNone) {
    return rules.fail(Code::attribute_not_set, "stats_use_log2 is set without Stats to write");
  }
  return validate_attention(rules, op.attention, e,
                            {op.q, op.k, op.v, op.o, op.stats, op.max, op.sum_exp});
}

}  // namespace heddle::graph
