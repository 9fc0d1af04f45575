#include "graph/validate_attention.h"

#include <algorithm>
#include <cfloat>
#include <cmath>

namespace heddle::graph {
namespace {

constexpr int kHead = 1, kColumn = 3;

Status validate_scale(const Rules& rules, const AttentionAttributes& a, DataType io) {
  if (a.attn_scale && a.attn_scale_tensor != kNone) {
    return rules.fail(Code::attribute_not_set,
                      "attn_scale with tensor and value cannot be set at the same time.");
  }
  // It is computed with in f32 but beside f64. NaN is no number of either.
  const bool is_f64 = io == DataType::f64;
  if (a.attn_scale && !(std::fabs(*a.attn_scale) <= (is_f64 ? DBL_MAX : FLT_MAX))) {
    return rules.fail(Code::invalid_value, "attn_scale is {}, expected a finite number{}.",
                      *a.attn_scale, is_f64 ? "" : " of f32");
  }
  if (a.attn_scale_tensor != kNone) {
    HEDDLE_TRY(rules.is_scalar("attn_scale", a.attn_scale_tensor));
    HEDDLE_TRY(rules.number_beside("attn_scale", a.attn_scale_tensor, io));
  }
  return {};
}

/// One side's lengths: plain [B,1,1,1] or prefix sums [B+1,1,1,1], not both.
Status validate_lengths(const Rules& rules, const char* side, TensorId plain, TensorId cumulative,
                        int64_t batch) {
  const std::string plain_port = fmt::format("seq_len_{}", side),
                    cumulative_port = fmt::format("cu_seq_len_{}", side);
  if (plain != kNone && cumulative != kNone) {
    return rules.fail(Code::invalid_value, "{} and {} are both set, expected one form for a side.",
                      plain_port, cumulative_port);
  }
  const TensorId id = plain != kNone ? plain : cumulative;
  if (id == kNone) return {};
  const char* port = plain != kNone ? plain_port.c_str() : cumulative_port.c_str();
  const int64_t count = plain != kNone ? batch : batch + 1;
  HEDDLE_TRY(rules.dtype_is(port, id, {DataType::i32, DataType::i64}));
  const Dims& dims = rules[id].dims;
  const bool flat = cumulative != kNone && dims == Dims{count};
  if (!flat && !(dims == Dims{count, 1, 1, 1})) {
    return error(Code::invalid_value, "{} has dims {}, expected [{}, 1, 1, 1].",
                 rules.subject(port, id), to_string(dims), count);
  }
  return {};
}

Status validate_padding(const Rules& rules, const AttentionAttributes& a,
                        const AttentionExtents& e) {
  const bool q = a.seq_len_q != kNone || a.cu_seq_len_q != kNone;
  const bool kv = a.seq_len_kv != kNone || a.cu_seq_len_kv != kNone;
  if (a.padding_mask && !(q && kv)) {
    return rules.fail(Code::attribute_not_set,
                      "Padding mask requires seq_len_q and seq_len_kv to be set: {} is missing.",
                      q ? "seq_len_kv" : "seq_len_q");
  }
  if ((q || kv) && !a.padding_mask && !a.score_mod) {
    return rules.fail(Code::attribute_not_set,
                      "seq_len_q and seq_len_kv needs to be set only if padding mask is enabled.");
  }
  HEDDLE_TRY(validate_lengths(rules, "q", a.seq_len_q, a.cu_seq_len_q, e.batch));
  return validate_lengths(rules, "kv", a.seq_len_kv, a.cu_seq_len_kv, e.batch);
}

Status validate_ragged(const Rules& rules, const AttentionAttributes& a,
                       std::initializer_list<TensorId> rows) {
  const bool ragged = std::any_of(rows.begin(), rows.end(), [&](TensorId id) {
    return id != kNone && rules[id].ragged_offset != kNone;
  });
  if (ragged && !a.padding_mask && !a.score_mod) {
    return rules.fail(Code::graph_not_supported,
                      "Ragged offsets are only supported with padding mask.");
  }
  const auto total = [&](const char* name, const std::optional<int64_t>& value) -> Status {
    if (!value) return {};
    if (!ragged)
      return rules.fail(Code::graph_not_supported, "{} is only supported with packed layout", name);
    if (*value >= 1) return {};
    return rules.fail(Code::invalid_value, "{} is {}, expected at least 1", name, *value);
  };
  HEDDLE_TRY(total("max_total_seq_len_q", a.max_total_seq_len_q));
  return total("max_total_seq_len_kv", a.max_total_seq_len_kv);
}

Status validate_diagonal(const Rules& rules, const AttentionAttributes& a,
                         const AttentionExtents& e) {
  if (a.right_bound && *a.right_bound < 0) {
    return rules.fail(Code::invalid_value,
                      "Right bound needs to be larger than or equal to zero: it is {}",
                      *a.right_bound);
  }
  if (a.left_bound && *a.left_bound <= 0) {
    return rules.fail(
        Code::invalid_value,
        "Left bound (Sliding window length) should be greater than zero when set: it is {}",
        *a.left_bound);
  }
  for (const std::optional<int64_t>& bound : {a.left_bound, a.right_bound}) {
    if (bound && *bound > INT32_MAX) {
      return rules.fail(Code::invalid_value, "A diagonal band bound is {}, expected at most {}",
                        *bound, INT32_MAX);
    }
  }
  const bool longer = e.q_length > e.kv_length && !a.padding_mask;
  if (longer && a.right_bound && a.diagonal_alignment == DiagonalAlignment::bottom_right) {
    return rules.fail(Code::graph_not_supported,
                      "Bottom right causal mask does not support max_s_q > max_s_kv. Please "
                      "virtually slice the Q "
                      "tensor and pass it as max_s_q == max_s_kv: here {} > {}",
                      e.q_length, e.kv_length);
  }
  if (longer && a.left_bound) {
    return rules.fail(
        Code::graph_not_supported,
        "Sliding window attention is only supported with max_s_q <= max_s_kv. Here {} > {}",
        e.q_length, e.kv_length);
  }
  if (a.alibi_mask && a.right_bound != 0) {
    return rules.fail(Code::graph_not_supported,
                      "When alibi mask is used, diagonal_band_right_bound needs to be set to 0.");
  }
  return {};
}

Status validate_block_mask(const Rules& rules, TensorId id, const AttentionExtents& e) {
  if (id == kNone) return {};
  const auto tiles = [](int64_t n, int64_t tile) { return (n + tile - 1) / tile; };
  HEDDLE_TRY(rules.dtype_is("block_mask", id, {DataType::u8}));
  return rules.broadcasts_to(
      "block_mask", id,
      {e.batch, e.q_heads, tiles(e.q_length, 128), tiles(tiles(e.kv_length, 128), 8)},
      /*exact=*/0b1100);
}

}  // namespace

Status validate_query_key_value(const Rules& rules, const QueryKeyValue& qkv) {
  for (const auto& [port, id] : {std::pair{"Q", qkv.q}, {"K", qkv.k}, {"V", qkv.v}}) {
    HEDDLE_TRY(rules.present(port, id));
    HEDDLE_TRY(rules.rank4(port, id));
    HEDDLE_TRY(rules.unit_last_stride(port, id));
  }
  if (qkv.is_fp8)
    HEDDLE_TRY(rules.dtype_is("Q", qkv.q, {DataType::f8e4m3, DataType::f8e5m2}));
  else
    HEDDLE_TRY(
        rules.dtype_is("Q", qkv.q, {DataType::f16, DataType::bf16, DataType::f32, DataType::f64}));
  for (const auto& [port, id] : {std::pair{"K", qkv.k}, {"V", qkv.v}}) {
    if (qkv.is_fp8) {
      HEDDLE_TRY(rules.dtype_is(port, id, {DataType::f8e4m3, DataType::f8e5m2}));
      continue;
    }
    if (qkv.may_hold_codes && holds_codes(*rules[id].dtype)) continue;
    HEDDLE_TRY(rules.dtype_is(port, id, {*rules[qkv.q].dtype}));
  }
  const Dims &q = rules[qkv.q].dims, &k = rules[qkv.k].dims, &v = rules[qkv.v].dims;
  const int64_t k_columns = numbers_of_row(*rules[qkv.k].dtype, k[kColumn]);
  if (q[kHead] % k[kHead] != 0 || q[kHead] % v[kHead] != 0) {
    return rules.fail(Code::graph_not_supported,
                      "For group-query attention, number of heads for key and query must be a "
                      "factor of number of "
                      "heads for query: Q has {} heads, K {} and V {}",
                      q[kHead], k[kHead], v[kHead]);
  }
  if (q[kColumn] != k_columns) {
    return rules.fail(Code::invalid_value, "Q has head dim {} and K {}, expected the same",
                      q[kColumn], k_columns);
  }
  const bool dense = !qkv.paged_k && !qkv.paged_v;
  if ((!qkv.paged_k && k[0] != q[0]) || (!qkv.paged_v && v[0] != q[0])) {
    return rules.fail(Code::invalid_value, "Q has dims {}, K {} and V {}, expected the same batch",
                      to_string(q), to_string(k), to_string(v));
  }
  if (dense && k[2] != v[2]) {
    return rules.fail(Code::invalid_value,
                      "K has dims {} and V {}, expected the same sequence length", to_string(k),
                      to_string(v));
  }
  return {};
}

Status validate_scales(const Rules& rules, const char* cache_port, TensorId cache,
                       const char* scale_port, TensorId scale) {
  const DataType type = *rules[cache].dtype;
  if (holds_codes(type) != (scale != kNone)) {
    return rules.fail(Code::attribute_not_set, "{} is {}, {} {}", cache_port, name(type),
                      scale == kNone ? "codes that need" : "numbers that take no", scale_port);
  }
  if (scale == kNone) return {};
  HEDDLE_TRY(rules.dtype_is(scale_port, scale, {DataType::f32}));
  const Dims& dims = rules[cache].dims;
  return rules.broadcasts_to(scale_port, scale,
                             {1, dims[kHead], 1, numbers_of_row(type, dims[kColumn])});
}

Status validate_row_statistic(const Rules& rules, const char* port, TensorId id,
                              const AttentionExtents& e, DataType io) {
  HEDDLE_TRY(rules.rank4(port, id));
  HEDDLE_TRY(rules.dims_are(port, id, {e.batch, e.q_heads, e.q_length, 1}));
  return rules.number_beside(port, id, io);
}

Status validate_attention(const Rules& rules, AttentionAttributes& a, const AttentionExtents& e,
                          std::initializer_list<TensorId> rows) {
  const Dims scores{e.batch, e.q_heads, e.q_length, e.kv_length};
  const DataType io = *rules[*rows.begin()].dtype;
  HEDDLE_TRY(validate_scale(rules, a, io));
  if (a.bias != kNone) {
    if (rules[a.bias].dtype == DataType::boolean) {
      return rules.fail(Code::graph_not_supported,
                        "Bias mask data type cannot be boolean: the {} is; give 0 where a key is "
                        "kept and -inf where "
                        "it is not, in a floating type",
                        describe(rules[a.bias]));
    }
    HEDDLE_TRY(rules.dtype_is("Bias", a.bias,
                              {DataType::f16, DataType::bf16, DataType::f32, DataType::f64}));
    HEDDLE_TRY(rules.broadcasts_to("Bias", a.bias, scores));
  }
  HEDDLE_TRY(validate_padding(rules, a, e));
  HEDDLE_TRY(validate_ragged(rules, a, rows));
  HEDDLE_TRY(validate_diagonal(rules, a, e));
  HEDDLE_TRY(validate_block_mask(rules, a.block_mask, e));
  if (a.sink != kNone) {
    HEDDLE_TRY(rules.broadcasts_to("sink", a.sink, {1, e.q_heads, 1, 1}));
    if (rules[a.sink].dtype != DataType::f16 && rules[a.sink].dtype != DataType::bf16)
      HEDDLE_TRY(rules.number_beside("sink", a.sink, io));
  }
  if (a.softmax_input_is_log2 && a.score_mod) {
    return rules.fail(Code::graph_not_supported,
                      "score_mod and softmax_input_is_log2 are both set: a score expression is "
                      "written for natural "
                      "scores, expected one of the two");
  }
  HEDDLE_TRY(validate_dropout(rules, a.dropout, e, io));
  if (a.score_mod) HEDDLE_TRY(validate_score_modifier(rules, "score_mod", *a.score_mod, e));
  return {};
}

}  // namespace heddle::graph
