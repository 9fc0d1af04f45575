#include "gqa/extents.h"

#include <algorithm>
#include <cfloat>
#include <cmath>

namespace heddle::gqa {
namespace {

template <class... Args>
Status invalid(fmt::format_string<Args...> format, Args&&... args) {
  return error(Code::invalid_value, format, std::forward<Args>(args)...);
}

Status check_attributes(const Operator& op) {
  if (op.num_heads < 1 || op.kv_num_heads < 1)
    return invalid("num_heads and kv_num_heads must be positive. Got {} and {}", op.num_heads,
                   op.kv_num_heads);
  if (op.num_heads % op.kv_num_heads != 0)
    return invalid(
        "num_heads must be a multiple of kv_num_heads. Got num_heads % kv_num_heads == {}",
        op.num_heads % op.kv_num_heads);
  if (op.causal != 0 && op.causal != 1) return invalid("causal must be 0 or 1. Got {}", op.causal);
  if (op.local_window_size != -1 && op.local_window_size < 1)
    return invalid("local_window_size must be -1 or greater than 0. Got {}", op.local_window_size);
  if (op.causal == 0 && op.local_window_size != -1)
    return invalid("local_window_size must be -1 when causal is 0. Got {}", op.local_window_size);
  if (op.sliding_window_cache != 0 && op.local_window_size < 1)
    return invalid("sliding_window_cache=1 requires local_window_size > 0.");
  if (op.sliding_window_cache != 0 && !(op.has(past_key) && op.has(past_value)))
    return invalid("sliding_window_cache=1 requires past_key and past_value to be present.");
  if (!std::isfinite(op.scale)) return invalid("scale must be finite. Got {}", op.scale);
  if (!(std::isfinite(op.softcap) && op.softcap >= 0))
    return invalid("softcap must be finite and not negative. Got {}", op.softcap);
  // Scores are divided by it in f32.
  if (op.softcap > FLT_MAX || (op.softcap > 0 && op.softcap < FLT_MIN))
    return invalid("softcap must be 0, or from 2^-126 to the largest number of f32. Got {}",
                   op.softcap);
  for (const double epsilon :
       {op.qk_norm_epsilon, op.q_norm_epsilon.value_or(1), op.k_norm_epsilon.value_or(1)}) {
    if (!(std::isfinite(epsilon) && epsilon > 0))
      return invalid("qk_norm_epsilon must be finite and positive. Got {}", epsilon);
  }
  if (op.qk_output < 0 || op.qk_output > 2)
    return invalid("qk_output attribute received unsupported value {}", op.qk_output);
  if (op.qk_output != 0 && !op.wanted[output_qk])
    return invalid("qk_output attribute was configured but output buffer was not provided");
  if (op.qk_output == 0 && op.wanted[output_qk])
    return invalid("output_qk is provided, but the qk_output attribute is 0, expected 1 or 2");
  if (op.qk_output != 0 && op.sliding_window_cache != 0)
    return error(Code::graph_not_supported,
                 "qk_output is not implemented with sliding_window_cache=1.");
  return {};
}

/// Dims of [B, S, hidden].
Status check_rank(const Operator& op, Input input, const char* name, int rank) {
  if (op[input].dims.rank() == rank) return {};
  return invalid("Input '{}' is expected to have {} dimensions, got {}", name, rank,
                 op[input].dims.rank());
}

Status check_type(const Operator& op, Input input, const char* name, DataType expected) {
  if (!op.has(input) || op[input].dtype == expected) return {};
  return invalid("Input '{}' is expected to be of type {}, got {}", name, heddle::name(expected),
                 heddle::name(op[input].dtype));
}

Status check_head_size(const Extents& e) {
  if (e.head_size < 1 || e.head_size % 8 != 0)
    return invalid("head_size must be a multiple of 8. Got head_size % 8 == {}", e.head_size % 8);
  return {};
}

Status check_packed(const Operator& op, Extents& e) {
  const int64_t heads = op.num_heads + 2 * op.kv_num_heads, hidden = op[query].dims[2];
  if (hidden % heads != 0)
    return invalid(
        "Hidden size of packed qkv must be divisible by num_heads + 2 * kv_num_heads ({}). Got {}",
        heads, hidden);
  e.is_packed = true;
  e.head_size = hidden / heads;
  return check_head_size(e);
}

Status check_separate(const Operator& op, Extents& e) {
  const Dims &q = op[query].dims, &k = op[key].dims, &v = op[value].dims;
  if (q[2] % op.num_heads != 0)
    return invalid("Hidden size of query must be divisible by num_heads ({}). Got {}", op.num_heads,
                   q[2]);
  e.head_size = q[2] / op.num_heads;
  HEDDLE_TRY(check_head_size(e));
  if (k[0] != q[0]) return invalid("Input 'query' and 'key' shall have same dim 0 (batch size)");
  if (v[0] != q[0]) return invalid("Input 'query' and 'value' shall have same dim 0 (batch size)");
  if (k[1] != v[1])
    return invalid("Input 'key' and 'value' shall have same dim 1 (sequence length)");
  if (k[2] % op.kv_num_heads != 0)
    return invalid(
        "kv_hidden_size must be a multiple of kv_num_heads. Got kv_hidden_size % kv_num_heads == "
        "{}",
        k[2] % op.kv_num_heads);
  if (k[2] / op.kv_num_heads != e.head_size)
    return invalid(
        "kv_hidden_size / kv_num_heads must be equal to head_size. Got kv_hidden_size / "
        "kv_num_heads == {}",
        k[2] / op.kv_num_heads);
  if (v[2] != k[2]) return invalid("Input 'value' is expected to have same hidden size as key.");
  if (op.has(past_key) && k[1] != q[1] && k[1] != 0)
    return invalid(
        "query and key must have the same sequence length when past_key is provided, or key "
        "sequence length must be 0 for shared KV. Got {} and {}",
        q[1], k[1]);
  if (!op.has(past_key) && k[1] != q[1])
    return invalid(
        "query and key must have the same sequence length when past_key is not provided. Got {} "
        "and {}",
        q[1], k[1]);
  e.shares_cache = k[1] == 0;
  return {};
}

Status check_query_key_value(const Operator& op, Extents& e) {
  if (!op.has(query)) return invalid("Input 'query' is required");
  HEDDLE_TRY(check_rank(op, query, "query", 3));
  const DataType type = op[query].dtype;
  if (type != DataType::f32 && type != DataType::f16 && type != DataType::bf16)
    return invalid("Input 'query' is expected to be of type f32, f16 or bf16, got {}",
                   heddle::name(type));
  if (op.has(key) != op.has(value))
    return invalid(
        "Input 'key' and 'value' shall be both present, or both absent in the case of packed "
        "qkv.");
  const Dims& q = op[query].dims;
  e.batch = q[0], e.length = q[1];
  e.heads = op.num_heads, e.kv_heads = op.kv_num_heads;
  if (e.batch < 1 || e.length < 1)
    return invalid("Input 'query' has dims {}, of which none may be 0", to_string(q));
  if (!op.has(key)) return check_packed(op, e);
  HEDDLE_TRY(check_rank(op, key, "key", 3));
  HEDDLE_TRY(check_rank(op, value, "value", 3));
  HEDDLE_TRY(check_type(op, key, "key", type));
  HEDDLE_TRY(check_type(op, value, "value", type));
  return check_separate(op, e);
}

Result<QuantType> quant_type(std::string text, const char* attribute) {
  std::transform(text.begin(), text.end(), text.begin(), [](char c) {
    return c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c;
  });
  if (text == "NONE" || text.empty()) return QuantType::none;
  if (text == "PER_TENSOR") return QuantType::per_tensor;
  if (text == "PER_CHANNEL") return QuantType::per_channel;
  return invalid("{} must be NONE, PER_TENSOR or PER_CHANNEL. Got {}", attribute, text);
}

Status check_scale(const Operator& op, const Extents& e, Input input, const char* name,
                   QuantType type) {
  if (type == QuantType::none) return {};
  if (!op.has(input))
    return invalid("{}_scale must be provided when {}_quant_type is not NONE", name[0], name[0]);
  HEDDLE_TRY(check_type(op, input, name, DataType::f32));
  const int64_t expected = type == QuantType::per_tensor ? 1 : e.kv_heads * e.head_size;
  if (element_count(op[input].dims) == expected) return {};
  return invalid("{} shape mismatch: expected {} elements, got {}", name, expected,
                 to_string(op[input].dims));
}

Status check_quantisation(const Operator& op, Extents& e) {
  HEDDLE_ASSIGN(e.k_quant, quant_type(op.k_quant_type, "k_quant_type"));
  HEDDLE_ASSIGN(e.v_quant, quant_type(op.v_quant_type, "v_quant_type"));
  const int64_t bits = op.kv_cache_bit_width;
  if (bits != 0 && bits != 4 && bits != 8)
    return invalid("kv_cache_bit_width must be 0, 4 or 8. Got {}", bits);
  if ((e.k_quant == QuantType::none) != (e.v_quant == QuantType::none))
    return invalid(
        "GroupQueryAttention requires k_quant_type and v_quant_type to be both NONE or neither, as "
        "past_key and past_value are of one type");
  if (e.k_quant == QuantType::none) {
    if (bits != 0)
      return invalid("kv_cache_bit_width must be 0 when quantization is disabled. Got {}", bits);
    e.cache = op[query].dtype;
    return {};
  }
  if (bits == 0) return invalid("kv_cache_bit_width must be 4 or 8 with quantization. Got 0");
  HEDDLE_TRY(check_scale(op, e, k_scale, "k_scale", e.k_quant));
  HEDDLE_TRY(check_scale(op, e, v_scale, "v_scale", e.v_quant));
  e.cache = bits == 4 ? DataType::u8 : DataType::i8;
  if (bits == 8 && op.has(past_key) && op[past_key].dtype == DataType::f8e4m3)
    e.cache = DataType::f8e4m3;
  return {};
}

Status check_past(const Operator& op, Extents& e) {
  if (op.has(past_key) != op.has(past_value))
    return invalid("Input 'past_key' and 'past_value' shall be both present or both absent.");
  e.present_rows = op.total_length;
  if (!op.has(past_key)) return {};
  for (const auto& [input, name] : {std::pair{past_key, "past_key"}, {past_value, "past_value"}}) {
    HEDDLE_TRY(check_rank(op, input, name, 4));
    HEDDLE_TRY(check_type(op, input, name, e.cache));
    const Dims& past = op[input].dims;
    if (past[0] != e.batch)
      return invalid("Input '{}' dimension 0 should be batch_size, got {}", name, past[0]);
    if (past[1] != e.kv_heads) return invalid("Input '{}' shall have kv_num_heads", name);
    if (past[3] != e.cache_columns())
      return invalid("Input '{}' dimension 3 should match the packed KV head dimension, got {}",
                     name, past[3]);
  }
  if (op[past_key].dims[2] != op[past_value].dims[2])
    return invalid(
        "BNSH Input 'past_key' and 'past_value' should have same dimension 2 (max sequence length "
        "or past sequence length), got {} and {}",
        op[past_key].dims[2], op[past_value].dims[2]);
  e.past_rows = op[past_key].dims[2];
  if (op.sliding_window_cache != 0) {
    if (e.past_rows < op.local_window_size)
      return invalid(
          "sliding_window_cache: KV cache capacity ({}) must be at least local_window_size ({}).",
          e.past_rows, op.local_window_size);
    e.present_rows = e.past_rows;
  } else {
    e.present_rows = std::max(op.total_length, e.past_rows);
  }
  if (e.shares_cache && op.total_length > e.past_rows)
    return invalid(
        "total_sequence_length ({}) exceeds the {} rows of the cache that key sequence length 0 "
        "shares",
        op.total_length, e.past_rows);
  return {};
}

Status check_lengths(const Operator& op, const Extents& e) {
  if (!op.has(seqlens_k)) return invalid("Input 'seqlens_k' is required");
  HEDDLE_TRY(check_type(op, seqlens_k, "seqlens_k", DataType::i32));
  const Dims& lengths = op[seqlens_k].dims;
  if (lengths.rank() == 0) return invalid("seqlens_k must be at least 1D, got scalar.");
  if (element_count(lengths) != e.batch)
    return invalid("seqlens_k must have batch_size ({}) elements, got {}.", e.batch,
                   element_count(lengths).value_or(0));
  if (std::count_if(lengths.begin(), lengths.end(), [](int64_t dim) { return dim != 1; }) > 1 ||
      lengths.rank() > 2)
    return invalid("seqlens_k has unexpected shape. Got {}", to_string(lengths));
  if (!op.has(total_sequence_length)) return invalid("Input 'total_sequence_length' is required");
  if (element_count(op[total_sequence_length].dims) != 1)
    return invalid("total_sequence_length tensor must be of one element.");
  if (op.total_length < 1)
    return invalid("total_sequence_length must be positive, got {}.", op.total_length);
  if (op.total_length > INT32_MAX)
    return invalid("total_sequence_length must be {} at most, got {}.", INT32_MAX, op.total_length);
  if (!e.shares_cache && op.sliding_window_cache == 0 && e.present_rows < e.length)
    return invalid(
        "total_sequence_length must be at least kv_sequence_length for a non-sliding cache. Got {} "
        "and {}.",
        op.total_length, e.length);
  if (!op.has(query_seqlens)) return {};
  HEDDLE_TRY(check_type(op, query_seqlens, "query_seqlens", DataType::i32));
  if (op[query_seqlens].dims.rank() != 1 || op[query_seqlens].dims[0] != e.batch)
    return invalid("query_seqlens must have batch_size ({}) elements, got {}", e.batch,
                   to_string(op[query_seqlens].dims));
  if (op.causal == 0) return invalid("query_seqlens requires causal=1.");
  return {};
}

Status check_rotary(const Operator& op, const Extents& e) {
  if (op.has(cos_cache) != op.has(sin_cache))
    return invalid("Input 'cos_cache' and 'sin_cache' shall be both present or both absent.");
  if (!op.has(cos_cache)) {
    if (op.do_rotary == 0) return {};
    return invalid(
        "cos_cache and sin_cache must be passed to GroupQueryAttention when do_rotary = 1");
  }
  HEDDLE_TRY(check_rank(op, cos_cache, "cos_cache", 2));
  HEDDLE_TRY(check_rank(op, sin_cache, "sin_cache", 2));
  HEDDLE_TRY(check_type(op, cos_cache, "cos_cache", op[query].dtype));
  HEDDLE_TRY(check_type(op, sin_cache, "sin_cache", op[query].dtype));
  if (e.head_size % 16 != 0)
    return invalid("head_size shall be a multiple of 16. Got head_size % 16 == {}",
                   e.head_size % 16);
  for (const auto& [input, name] : {std::pair{cos_cache, "cos_cache"}, {sin_cache, "sin_cache"}}) {
    const Dims& table = op[input].dims;
    if (table[0] < op.total_length)
      return invalid("{} dimension 0 shall not be less than total_sequence_length.", name);
    if (table[1] > e.head_size / 16 * 8 || table[1] % 8 != 0 || table[1] < 1)
      return invalid("{} dimension 1 must be <= head_size / 2 and a multiple of 8.", name);
  }
  if (op[cos_cache].dims[1] != op[sin_cache].dims[1])
    return invalid("cos_cache and sin_cache dimension 1 must be the same.");
  if (op[cos_cache].dims[0] != op[sin_cache].dims[0])
    return invalid("cos_cache and sin_cache dimension 0 must be the same.");
  return {};
}

Status check_positions(const Operator& op, const Extents& e) {
  if (!op.has(position_ids)) return {};
  HEDDLE_TRY(check_type(op, position_ids, "position_ids", DataType::i64));
  HEDDLE_TRY(check_rank(op, position_ids, "position_ids", 2));
  const Dims& ids = op[position_ids].dims;
  if (ids[0] != e.batch)
    return invalid("position_ids dimension 0 must be equal to the batch size, got {}", ids[0]);
  if (ids[1] < e.length)
    return invalid("position_ids dimension 1 must be at least sequence length, got {}", ids[1]);
  return {};
}

Status check_bias(const Operator& op, const Extents& e) {
  if (!op.has(attention_bias)) return {};
  HEDDLE_TRY(check_type(op, attention_bias, "attention_bias", op[query].dtype));
  const Dims& bias = op[attention_bias].dims;
  if (bias.rank() != 4) return invalid("attention_bias must be a 4D tensor, got {}", bias.rank());
  if (bias[0] != e.batch && bias[0] != 1)
    return invalid("attention_bias dimension 0 must be equal to the batch size or 1, got {}",
                   bias[0]);
  if (bias[1] != e.heads && bias[1] != 1)
    return invalid("attention_bias dimension 1 must be equal to the num heads or 1, got {}",
                   bias[1]);
  if (bias[2] != e.length)
    return invalid("attention_bias dimension 2 must be equal to the sequence length, got {}",
                   bias[2]);
  if (bias[3] != op.total_length)
    return invalid("attention_bias dimension 3 must be equal to total_sequence_length, got {}",
                   bias[3]);
  return {};
}

Status check_extras(const Operator& op, const Extents& e) {
  const DataType type = op[query].dtype;
  if (op.has(head_sink)) {
    HEDDLE_TRY(check_type(op, head_sink, "head_sink", type));
    if (op[head_sink].dims.rank() != 1) return invalid("head_sink must be a 1D tensor");
    if (op[head_sink].dims[0] != e.heads)
      return invalid("head_sink dimension 0 must be equal to the num heads, got {}",
                     op[head_sink].dims[0]);
  }
  if (op.has(q_norm_weight) != op.has(k_norm_weight))
    return invalid("q_norm_weight and k_norm_weight must be provided together.");
  for (const auto& [input, name] :
       {std::pair{q_norm_weight, "q_norm_weight"}, {k_norm_weight, "k_norm_weight"}}) {
    if (!op.has(input)) continue;
    HEDDLE_TRY(check_type(op, input, name, type));
    if (op[input].dims.rank() != 1 || op[input].dims[0] != e.head_size)
      return invalid("{} must be a 1D tensor of head_size ({}) elements, got {}", name, e.head_size,
                     to_string(op[input].dims));
  }
  return {};
}

}  // namespace

Result<Extents> extents_of(const Operator& op) {
  Extents e;
  HEDDLE_TRY(check_attributes(op));
  HEDDLE_TRY(check_query_key_value(op, e));
  HEDDLE_TRY(check_quantisation(op, e));
  HEDDLE_TRY(check_past(op, e));
  HEDDLE_TRY(check_lengths(op, e));
  HEDDLE_TRY(check_rotary(op, e));
  HEDDLE_TRY(check_positions(op, e));
  HEDDLE_TRY(check_bias(op, e));
  HEDDLE_TRY(check_extras(op, e));
  return e;
}

}  // namespace heddle::gqa
