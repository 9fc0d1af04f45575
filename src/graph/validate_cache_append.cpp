#include <algorithm>
#include <cmath>

#include "graph/validate_attention.h"

namespace heddle::graph {
namespace {

constexpr int kHead = 1, kRow = 2, kColumn = 3;

/// Heads, rows and columns that the op's tensors must agree in.
struct Extents {
  int64_t batch = 0, q_heads = 0, kv_heads = 0, rows = 0, k_columns = 0, v_columns = 0;
};

Status validate_rows_given(const Rules& rules, const char* port, TensorId id, DataType type) {
  HEDDLE_TRY(rules.rank4(port, id));
  HEDDLE_TRY(rules.dtype_is(port, id, {type}));
  return rules.unit_last_stride(port, id);
}

/// Q alone, Q, K and V, or all three packed in Q: then as many heads of K and V as the caches have.
Status validate_inputs(const Rules& rules, const CacheAppend& op, Extents& e) {
  HEDDLE_TRY(rules.present("Q", op.q));
  if ((op.k == kNone) != (op.v == kNone)) {
    return rules.fail(Code::attribute_not_set, "{} is set without {}", op.k != kNone ? "K" : "V",
                      op.k != kNone ? "V" : "K");
  }
  if ((op.present_k == kNone) != (op.present_v == kNone)) {
    return rules.fail(Code::attribute_not_set, "{} is set without {}",
                      op.present_k != kNone ? "present_k" : "present_v",
                      op.present_k != kNone ? "present_v" : "present_k");
  }
  HEDDLE_TRY(rules.dtype_is("Q", op.q, {DataType::f16, DataType::bf16, DataType::f32}));
  HEDDLE_TRY(validate_rows_given(rules, "Q", op.q, *rules[op.q].dtype));
  const Dims& q = rules[op.q].dims;
  e = {q[0], q[kHead], 0, q[kRow], q[kColumn], q[kColumn]};
  if (op.present_k == kNone) {
    if (op.k == kNone) return {};
    return rules.fail(Code::attribute_not_set, "K and V are set without present_k and present_v");
  }
  for (const auto& [past, given, present] :
       {std::tuple{op.past_k, op.k, op.present_k}, {op.past_v, op.v, op.present_v}}) {
    if (const TensorId like = past != kNone ? past : given; like != kNone)
      rules.infer(present, rules[like].dims, past);
  }
  for (const auto& [port, id] :
       {std::pair{"present_k", op.present_k}, {"present_v", op.present_v}}) {
    HEDDLE_TRY(rules.rank4(port, id));
    for (const int64_t dim : rules[id].dims) {
      if (dim < 1 || dim > INT32_MAX)
        return rules.fail(Code::invalid_value, "{} has dims {}, expected each from 1 to {}", port,
                          to_string(rules[id].dims), INT32_MAX);
    }
  }
  e.kv_heads = rules[op.present_k].dims[kHead];
  if (op.k == kNone) {
    e.q_heads -= 2 * e.kv_heads;
    if (e.q_heads >= 1) return {};
    return rules.fail(Code::invalid_value,
                      "Q has {} heads, expected more than twice the {} of the caches: heads of Q, "
                      "K and V",
                      q[kHead], e.kv_heads);
  }
  for (const auto& [port, id] : {std::pair{"K", op.k}, {"V", op.v}})
    HEDDLE_TRY(validate_rows_given(rules, port, id, *rules[op.q].dtype));
  e.v_columns = rules[op.v].dims[kColumn];
  HEDDLE_TRY(rules.dims_are("K", op.k, {e.batch, e.kv_heads, e.rows, e.k_columns}));
  return rules.dims_are("V", op.v, {e.batch, e.kv_heads, e.rows, e.v_columns});
}

/// One cache, before and after.
struct Cache {
  const char *past_port, *present_port, *scale_port;
  TensorId past, present, scale, table;
  int64_t columns;
};

Status validate_cache(const Rules& rules, const CacheAppend& op, const Cache& cache,
                      const Extents& e) {
  const Tensor& present = rules[cache.present];
  HEDDLE_TRY(rules.rank4(cache.present_port, cache.present));
  HEDDLE_TRY(rules.unit_last_stride(cache.present_port, cache.present));
  if (!holds_codes(*present.dtype))
    HEDDLE_TRY(rules.dtype_is(cache.present_port, cache.present, {*rules[op.q].dtype}));
  HEDDLE_TRY(
      validate_scales(rules, cache.present_port, cache.present, cache.scale_port, cache.scale));
  Dims expected = present.dims;
  expected[kHead] = e.kv_heads;
  expected[kColumn] = *present.dtype == DataType::u8 ? cache.columns / 2 : cache.columns;
  if (cache.table == kNone) expected[0] = e.batch;
  HEDDLE_TRY(rules.dims_are(cache.present_port, cache.present, expected));
  if (*present.dtype == DataType::u8 && cache.columns % 2 != 0) {
    return rules.fail(Code::invalid_value,
                      "{} holds two codes a byte, expected an even head dim instead of {}",
                      cache.present_port, cache.columns);
  }
  if (cache.table != kNone) {
    HEDDLE_TRY(rules.present(cache.past_port, cache.past));
    HEDDLE_TRY(rules.dtype_is("page_table", cache.table, {DataType::i32}));
    HEDDLE_TRY(rules.rank4("page_table", cache.table));
    HEDDLE_TRY(
        rules.dims_are("page_table", cache.table, {e.batch, 1, rules[cache.table].dims[2], 1}));
  }
  if (cache.past == kNone) return {};
  HEDDLE_TRY(validate_rows_given(rules, cache.past_port, cache.past, *present.dtype));
  if (cache.table == kNone) expected[kRow] = rules[cache.past].dims[kRow];
  return rules.dims_are(cache.past_port, cache.past, expected);
}

Status validate_caches(const Rules& rules, const CacheAppend& op, const Extents& e) {
  if (op.ring && (op.page_table_k != kNone || op.page_table_v != kNone)) {
    return rules.fail(Code::invalid_value,
                      "ring is set beside page tables, expected at most one of the two");
  }
  if ((op.past_k == kNone) != (op.past_v == kNone)) {
    return rules.fail(Code::attribute_not_set, "{} is set without {}",
                      op.past_k != kNone ? "past_k" : "past_v",
                      op.past_k != kNone ? "past_v" : "past_k");
  }
  if ((op.page_table_k == kNone) != (op.page_table_v == kNone)) {
    return rules.fail(Code::attribute_not_set, "{} is set without {}",
                      op.page_table_k != kNone ? "page_table_k" : "page_table_v",
                      op.page_table_k != kNone ? "page_table_v" : "page_table_k");
  }
  if (op.present_k == kNone) {
    for (const auto& [port, id] : {std::pair{"past_k", op.past_k},
                                   {"page_table_k", op.page_table_k},
                                   {"k_scale", op.k_scale},
                                   {"v_scale", op.v_scale},
                                   {"k_norm", op.k_norm}}) {
      if (id != kNone)
        return rules.fail(Code::attribute_not_set, "{} is set without present_k", port);
    }
    return {};
  }
  if (op.past_k != kNone && op.seq_len_kv == kNone) {
    return rules.fail(
        Code::attribute_not_set,
        "past_k is set without seq_len_kv, which says how many of its rows there are");
  }
  HEDDLE_TRY(validate_cache(rules, op,
                            {"past_k", "present_k", "k_scale", op.past_k, op.present_k, op.k_scale,
                             op.page_table_k, e.k_columns},
                            e));
  HEDDLE_TRY(validate_cache(rules, op,
                            {"past_v", "present_v", "v_scale", op.past_v, op.present_v, op.v_scale,
                             op.page_table_v, e.v_columns},
                            e));
  const bool paged = op.page_table_k != kNone;
  if (paged || rules[op.present_k].dims[kRow] == rules[op.present_v].dims[kRow]) return {};
  return rules.fail(Code::invalid_value, "present_k has {} rows and present_v {}, expected as many",
                    rules[op.present_k].dims[kRow], rules[op.present_v].dims[kRow]);
}

Status validate_lengths(const Rules& rules, const CacheAppend& op, const Extents& e) {
  for (const auto& [port, id] :
       {std::pair{"seq_len_q", op.seq_len_q}, {"seq_len_kv", op.seq_len_kv}}) {
    if (id == kNone) continue;
    HEDDLE_TRY(rules.dims_are(port, id, {e.batch, 1, 1, 1}));
    HEDDLE_TRY(rules.dtype_is(port, id, {DataType::i32, DataType::i64}));
  }
  if (op.seq_len_kv_offset >= -INT32_MAX && op.seq_len_kv_offset <= INT32_MAX) return {};
  return rules.fail(Code::invalid_value, "seq_len_kv_offset is {}, expected 32 bits",
                    op.seq_len_kv_offset);
}

Status validate_norms(const Rules& rules, const CacheAppend& op, const Extents& e) {
  for (const auto& [port, id] : {std::pair{"q_norm", op.q_norm}, {"k_norm", op.k_norm}}) {
    if (id == kNone) continue;
    HEDDLE_TRY(rules.dims_are(port, id, {1, 1, 1, e.k_columns}));
    HEDDLE_TRY(rules.dtype_is(port, id, {DataType::f16, DataType::bf16, DataType::f32}));
  }
  for (const auto& [name, epsilon] :
       {std::pair{"q_epsilon", op.q_epsilon}, {"k_epsilon", op.k_epsilon}}) {
    if (!(std::isfinite(epsilon) && epsilon >= 0))
      return rules.fail(Code::invalid_value, "{} is {}, expected a finite number not below 0", name,
                        epsilon);
  }
  return {};
}

Status validate_rotation(const Rules& rules, const CacheAppend& op, const Extents& e) {
  if ((op.cosines == kNone) != (op.sines == kNone)) {
    return rules.fail(Code::attribute_not_set, "{} are set without {}",
                      op.cosines != kNone ? "cosines" : "sines",
                      op.cosines != kNone ? "sines" : "cosines");
  }
  if (op.positions != kNone) {
    if (op.cosines == kNone)
      return rules.fail(Code::attribute_not_set, "positions are set without tables to rotate by");
    HEDDLE_TRY(rules.broadcasts_to("positions", op.positions, {e.batch, 1, e.rows, 1}, 0b0100));
    HEDDLE_TRY(rules.dtype_is("positions", op.positions, {DataType::i32, DataType::i64}));
  }
  if (op.cosines == kNone) return {};
  HEDDLE_TRY(rules.rank4("cosines", op.cosines));
  const Dims& table = rules[op.cosines].dims;
  if (table[1] != 1 || table[2] != 1 || 2 * table[3] > e.k_columns) {
    return error(Code::invalid_value, "{} has dims {}, expected [rows, 1, 1, up to {}].",
                 rules.subject("cosines", op.cosines), to_string(table), e.k_columns / 2);
  }
  HEDDLE_TRY(rules.dims_are("sines", op.sines, table));
  for (const auto& [port, id] : {std::pair{"cosines", op.cosines}, {"sines", op.sines}})
    HEDDLE_TRY(rules.dtype_is(port, id, {DataType::f16, DataType::bf16, DataType::f32}));
  return {};
}

Status validate_results(const Rules& rules, const CacheAppend& op, const Extents& e) {
  const TensorId results[] = {op.q_out, op.present_k, op.lengths_q, op.lengths_kv};
  if (std::all_of(std::begin(results), std::end(results), [](TensorId id) { return id == kNone; }))
    return rules.fail(Code::attribute_not_set, "no result is set, expected q_out or present_k");
  if (op.q_out != kNone) {
    HEDDLE_TRY(rules.makes("q_out", op.q_out, {e.batch, e.q_heads, e.rows, e.k_columns}));
    HEDDLE_TRY(rules.dtype_is("q_out", op.q_out, {*rules[op.q].dtype}));
    HEDDLE_TRY(rules.unit_last_stride("q_out", op.q_out));
  }
  for (const auto& [port, id] :
       {std::pair{"lengths_q", op.lengths_q}, {"lengths_kv", op.lengths_kv}}) {
    if (id == kNone) continue;
    HEDDLE_TRY(rules.makes(port, id, {e.batch, 1, 1, 1}));
    HEDDLE_TRY(rules.dtype_is(port, id, {DataType::i32}));
  }
  return {};
}

/// No tensor may be ragged.
Status validate_dense(const Rules& rules, const CacheAppend& op) {
  for (const auto& [port, id] : {std::pair{"Q", op.q},
                                 {"K", op.k},
                                 {"V", op.v},
                                 {"past_k", op.past_k},
                                 {"past_v", op.past_v},
                                 {"q_out", op.q_out},
                                 {"present_k", op.present_k},
                                 {"present_v", op.present_v}}) {
    if (id != kNone && rules[id].ragged_offset != kNone)
      return rules.fail(Code::graph_not_supported,
                        "{} is ragged, expected a dense tensor with seq_len_q", port);
  }
  return {};
}

}  // namespace

Status validate_cache_append(const Rules& rules, CacheAppend& op) {
  Extents e;
  HEDDLE_TRY(validate_inputs(rules, op, e));
  HEDDLE_TRY(validate_caches(rules, op, e));
  HEDDLE_TRY(validate_lengths(rules, op, e));
  HEDDLE_TRY(validate_norms(rules, op, e));
  HEDDLE_TRY(validate_rotation(rules, op, e));
  HEDDLE_TRY(validate_results(rules, op, e));
  return validate_dense(rules, op);
}

}  // namespace heddle::graph
