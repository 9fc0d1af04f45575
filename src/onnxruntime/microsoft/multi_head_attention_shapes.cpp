#include "onnxruntime/microsoft/multi_head_attention_shapes.h"

namespace heddle::onnxruntime::mha {
namespace {

constexpr int64_t kMostScores = int64_t{1} << 56;  ///< whose bytes a number can count

/// Of an input [batch, rows, heads * columns].
Part rows_of(size_t input, const Dims& dims, int64_t heads) {
  const int64_t columns = dims[2] / heads;
  return {input, dims[1], columns, {dims[1] * dims[2], columns, dims[2], 1}};
}

/// The n-th of those that an input [batch, rows, heads, how many, columns] holds.
Part packed(size_t input, const Dims& dims, int64_t n) {
  const int64_t head = dims[3] * dims[4], row = dims[2] * head;
  Part part{input, dims[1], dims[4], {dims[1] * row, head, row, 1}, n * dims[4]};
  part.is_packed = true;
  return part;
}

Status set_query(Inputs inputs, Shapes& s) {
  const Dims& query = inputs[kQuery].dims;
  if (query.rank() == 5) {
    if (inputs[kKey].is_given() || inputs[kValue].is_given())
      return error(Code::invalid_value,
                   "Input 'query' is expected to have 3 dimensions when key is given, got 5");
    if (query[2] != s.heads || query[3] != 3)
      return error(Code::invalid_value,
                   "Expect 'query' shape (batch_size, kv_sequence_length, num_heads, 3, "
                   "head_size) for packed qkv, got {}",
                   to_string(query));
    s.batch = query[0];
    s.q = packed(kQuery, query, 0);
    return {};
  }
  if (query.rank() != 3)
    return error(Code::invalid_value, "Input 'query' is expected to have 3 or 5 dimensions, got {}",
                 query.rank());
  if (!inputs[kKey].is_given())
    return error(Code::invalid_value,
                 "Packed qkv of 3D BS3NH format is not support by MultiHeadAttention");
  if (query[2] % s.heads != 0)
    return error(Code::invalid_value,
                 "The hidden size of 'query', {}, must be a multiple of "
                 "num_heads, {}",
                 query[2], s.heads);
  s.batch = query[0];
  s.q = rows_of(kQuery, query, s.heads);
  return {};
}

Status set_key_and_value(Inputs inputs, Shapes& s) {
  const Value &key = inputs[kKey], &value = inputs[kValue];
  if (s.q.is_packed) {
    s.k = packed(kQuery, inputs[kQuery].dims, 1), s.v = packed(kQuery, inputs[kQuery].dims, 2);
    return {};
  }
  const Dims &k = key.dims, &v = value.dims;
  if (k.rank() == 5) {
    if (value.is_given())
      return error(Code::invalid_value, "Expect 'value' be none when 'key' has packed kv format.");
    if (k[0] != s.batch || k[2] != s.heads || k[3] != 2 || k[4] != s.q.columns)
      return error(Code::invalid_value,
                   "Expect 'key' shape (batch_size, kv_sequence_length, num_heads, 2, head_size) "
                   "for packed kv, got {}",
                   to_string(k));
    s.k = packed(kKey, k, 0), s.v = packed(kKey, k, 1);
    return {};
  }
  if (!value.is_given())
    return error(Code::invalid_value, "Expect rank of key be 5 for packed kv, got {}", k.rank());
  if (k.rank() != v.rank() || (k.rank() != 3 && k.rank() != 4))
    return error(Code::invalid_value,
                 "Expect rank of key and value be same, and either 3 or 4, got {} and {}", k.rank(),
                 v.rank());
  if (k[0] != s.batch || v[0] != s.batch)
    return error(Code::invalid_value,
                 "Input 'query', 'key' and 'value' shall have same dim 0 (batch_size)");
  if (k.rank() == 4) {
    if (!(k == v) || k[1] != s.heads || k[3] != s.q.columns)
      return error(Code::invalid_value,
                   "Input 'key' and 'value' shall have same shape (batch_size, num_heads, "
                   "kv_sequence_length, head_size), got {} and {}",
                   to_string(k), to_string(v));
    const Dims strides{k[1] * k[2] * k[3], k[2] * k[3], k[3], 1};
    s.k = {kKey, k[2], k[3], strides}, s.v = {kValue, v[2], v[3], strides};
    return {};
  }
  if (k[2] != inputs[kQuery].dims[2])
    return error(Code::invalid_value,
                 "Input 'query' and 'key' shall have same dim 2 (hidden_size), got {} and {}",
                 inputs[kQuery].dims[2], k[2]);
  if (k[1] != v[1])
    return error(Code::invalid_value,
                 "Input 'key' and 'value' shall have same dim 1 (kv_sequence_length), got {} and "
                 "{}",
                 k[1], v[1]);
  if (v[2] % s.heads != 0)
    return error(Code::invalid_value,
                 "The hidden size of 'value', {}, must be a multiple of "
                 "num_heads, {}",
                 v[2], s.heads);
  s.k = rows_of(kKey, k, s.heads), s.v = rows_of(kValue, v, s.heads);
  return {};
}

Status set_bias(Inputs inputs, Shapes& s) {
  const Value& bias = inputs[kBias];
  if (!bias.is_given()) return {};
  if (bias.dims.rank() != 1)
    return error(Code::invalid_value, "Input 'bias' is expected to have 1 dimension, got {}",
                 bias.dims.rank());
  const int64_t hidden = s.heads * s.q.columns, expected = 2 * hidden + s.heads * s.v.columns;
  if (bias.dims[0] != expected)
    return error(Code::invalid_value,
                 "Input 'bias' length is expected to be 2 * hidden_size + hidden_size_v, got {} "
                 "instead of {}",
                 bias.dims[0], expected);
  s.q.bias = 0;
  // K and V that come as heads had it before.
  if (inputs[kKey].is_given() && inputs[kKey].dims.rank() == 4) return {};
  s.k.bias = hidden, s.v.bias = 2 * hidden;
  return {};
}

Status set_past(Inputs inputs, Shapes& s) {
  const Value &key = inputs[kPastKey], &value = inputs[kPastValue];
  if (key.is_given() != value.is_given())
    return error(Code::invalid_value,
                 "Input 'past_key' and 'past_value' shall be both present or both absent");
  if (!key.is_given()) return {};
  const int64_t rows = key.dims.rank() == 4 ? key.dims[2] : 0;
  for (const auto& [past, part, name] :
       {std::tuple{&key, &s.k, "past_key"}, {&value, &s.v, "past_value"}}) {
    const Dims expected{s.batch, s.heads, rows, part->columns};
    if (past->dims == expected) continue;
    return error(Code::invalid_value,
                 "Input '{}' has dims {}, expected (batch_size, num_heads, rows, head_size), {}",
                 name, to_string(past->dims), to_string(expected));
  }
  if (!inputs[kPastLength].is_given()) {
    s.past = rows;
    return {};
  }
  HEDDLE_ASSIGN(s.past, past_length(inputs));
  if (s.past < 0 || s.past >= rows)
    return error(Code::invalid_value,
                 "past_sequence_length must be non-negative and less than max_sequence_length "
                 "({}), got {}",
                 rows, s.past);
  if (s.total() > rows)
    return error(Code::invalid_value,
                 "past_sequence_length ({}) plus kv_sequence_length ({}) must not exceed "
                 "max_sequence_length ({}).",
                 s.past, s.k.rows, rows);
  s.capacity = rows;
  return {};
}

Status check_indirection(const Value& beams, const Shapes& s) {
  if (!beams.is_given()) return {};
  const Dims& dims = beams.dims;
  if (dims.rank() == 3 && dims[1] > 0 && dims[0] == s.batch / dims[1] && s.batch % dims[1] == 0 &&
      dims[2] >= s.past && dims[2] <= s.capacity)
    return {};
  return error(Code::invalid_value,
               "Input 'cache_indirection' has dims {}, expected a batch and beams whose product "
               "is batch_size, {}, and from {} to {} rows",
               to_string(dims), s.batch, s.past, s.capacity);
}

Status check_mask(const Value& mask, const Shapes& s) {
  if (!mask.is_given()) return {};
  const Dims& dims = mask.dims;
  if (dims == Dims{s.batch} || dims == Dims{3 * s.batch + 2} || dims == Dims{s.batch, s.total()} ||
      dims == Dims{s.batch, s.q.rows, s.total()})
    return {};
  return error(Code::invalid_value,
               "Input 'key_padding_mask' shape is not expected. Got {}, expected [{}], [{}], [{}, "
               "{}] or [{}, {}, {}]",
               to_string(dims), s.batch, 3 * s.batch + 2, s.batch, s.total(), s.batch, s.q.rows,
               s.total());
}

Status check_attention_bias(const Value& bias, const Shapes& s) {
  if (!bias.is_given()) return {};
  const Dims& dims = bias.dims;
  if (dims.rank() != 4)
    return error(Code::invalid_value,
                 "Input 'attention_bias' is expected to have 4 dimensions, got {}", dims.rank());
  if ((dims[0] == 1 || dims[0] == s.batch) && (dims[1] == 1 || dims[1] == s.heads) &&
      dims[2] == s.q.rows && dims[3] == s.total())
    return {};
  return error(Code::invalid_value,
               "Input 'attention_bias' has dims {}, expected (batch_size or 1, num_heads or 1, "
               "sequence_length, total_sequence_length), of {}, {}, {} and {}",
               to_string(dims), s.batch, s.heads, s.q.rows, s.total());
}

}  // namespace

bool shares_buffer(Inputs inputs) {
  return inputs[kPastLength].is_given() && inputs[kPastKey].is_given();
}

Result<int64_t> past_length(Inputs inputs) {
  const Value& given = inputs[kPastLength];
  if (element_count(given.dims) != 1)
    return error(Code::invalid_value,
                 "past_sequence_length tensor must be of one element when "
                 "past_present_share_buffer is set");
  return *static_cast<const int32_t*>(given.data);
}

Result<Shapes> shapes_of(Inputs inputs, int64_t heads) {
  Shapes s;
  s.heads = heads;
  for (const auto& [n, name] : {std::pair{kQuery, "query"}, {kKey, "key"}, {kValue, "value"}}) {
    for (const int64_t dim : inputs[n].dims) {
      if (dim < 1)
        return error(Code::invalid_value, "Input '{}' has dims {}, of which none may be 0", name,
                     to_string(inputs[n].dims));
    }
  }
  HEDDLE_TRY(set_query(inputs, s));
  HEDDLE_TRY(set_key_and_value(inputs, s));
  HEDDLE_TRY(set_bias(inputs, s));
  HEDDLE_TRY(set_past(inputs, s));
  const Dims scores{s.batch, s.heads, s.q.rows, s.cache_rows()};
  if (element_count(scores).value_or(kMostScores) >= kMostScores)
    return error(Code::invalid_value, "There are more than {} scores, of dims {}", kMostScores,
                 to_string(scores));
  HEDDLE_TRY(check_mask(inputs[kMask], s));
  HEDDLE_TRY(check_attention_bias(inputs[kAttentionBias], s));
  if (shares_buffer(inputs)) HEDDLE_TRY(check_indirection(inputs[kIndirection], s));
  return s;
}

}  // namespace heddle::onnxruntime::mha
