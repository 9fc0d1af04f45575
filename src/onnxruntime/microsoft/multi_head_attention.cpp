#include "onnxruntime/microsoft/multi_head_attention.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "onnxruntime/graph_builder.h"

namespace heddle::onnxruntime {
namespace {

using abi::ElementType;

enum : size_t {
  kQuery,
  kKey,
  kValue,
  kBias,
  kMask,
  kAttentionBias,
  kPastKey,
  kPastValue,
  kPastLength,
  kIndirection
};
enum : size_t { kOutput, kPresentKey, kPresentValue, kScores };

constexpr Port kInputs[] = {
    {"query"},
    {"key", ElementType::undefined, 0, true},
    {"value", ElementType::undefined, 0, true},
    {"bias", ElementType::undefined, 0, true},
    {"key_padding_mask", ElementType::i32, 0, true},
    {"attention_bias", ElementType::undefined, 0, true},
    {"past_key", ElementType::undefined, 0, true},
    {"past_value", ElementType::undefined, 0, true},
    {"past_sequence_length", ElementType::i32, 0, true, false, true},
    {"cache_indirection", ElementType::i32, 0, true},
};
constexpr Port kOutputs[] = {
    {"output"},
    {"present_key", ElementType::undefined, 0, true},
    {"present_value", ElementType::undefined, 0, true},
    {"qk", ElementType::undefined, 0, true},
};
constexpr Overload kOverloads[] = {
    {{ElementType::f32}}, {{ElementType::f16}}, {{ElementType::bf16}}};

/// Heads of Q, K or V: [batch, heads, rows, columns], in an input or, with a bias or out of a
/// packed one, in a block.
struct Part {
  size_t input = kQuery;
  int64_t rows = 0, columns = 0;
  Dims strides;            ///< within the input
  int64_t first = 0;       ///< of the input's elements
  int64_t bias = -1;       ///< first of the bias's elements; -1: none is added
  bool is_packed = false;  ///< with others in one input

  bool is_copied() const { return is_packed || bias >= 0; }
};

struct Shapes {
  int64_t batch = 0, heads = 0;
  Part q, k, v;
  int64_t past = 0;      ///< rows before the new ones
  int64_t capacity = 0;  ///< rows of a buffer that past and present share; else 0
  int64_t total() const { return past + k.rows; }
  int64_t cache_rows() const { return capacity > 0 ? capacity : total(); }
};

class MultiHeadAttention : public Node {
 public:
  static Result<std::unique_ptr<Node>> make(Attributes& attributes) {
    std::unique_ptr<MultiHeadAttention> node(new MultiHeadAttention);
    HEDDLE_TRY(node->read(attributes));
    return std::unique_ptr<Node>(std::move(node));
  }

  Result<int64_t> number(Inputs inputs, const Wanted& wanted) const override {
    if (!shares_buffer(inputs) || !is_gathered(inputs, wanted)) return 0;
    return past_length(inputs);
  }

  Result<Recipe> recipe(Inputs inputs, const Wanted& wanted, int64_t) const override {
    HEDDLE_ASSIGN(const Shapes s, shapes_of(inputs));
    const bool shares = s.capacity > 0, gathered = shares && is_gathered(inputs, wanted);
    if (shares && !(wanted[kPresentKey] && wanted[kPresentValue]))
      return error(Code::invalid_value,
                   "Shared past/present buffer requires both present_key and present_value "
                   "outputs.");
    const DataType type = *inputs[kQuery].dtype;
    const Dims cache_k{s.batch, s.heads, s.cache_rows(), s.k.columns},
        cache_v{s.batch, s.heads, s.cache_rows(), s.v.columns};
    Recipe recipe;
    recipe.outputs = {{{s.batch, s.q.rows, s.heads * s.v.columns}, type},
                      {cache_k, type},
                      {cache_v, type},
                      {{s.batch, s.heads, s.q.rows, s.total()}, type}};

    GraphBuilder graph("multi_head_attention");
    const auto block = [&](const char* name, DataType of, const Dims& dims) {
      recipe.prepared_bytes.push_back(static_cast<size_t>(*element_count(dims) * size_of(of)));
      return graph.bound(uid_of_prepared(static_cast<int>(recipe.prepared_bytes.size()) - 1), name,
                         of, dims);
    };
    const auto heads = [&](const Part& part, const char* name) {
      const Dims dims{s.batch, s.heads, part.rows, part.columns};
      return part.is_copied() ? block(name, type, dims)
                              : graph.bound(uid_of_input(static_cast<int>(part.input)), name, type,
                                            dims, part.strides);
    };
    const int64_t q = heads(s.q, "query");
    int64_t k = heads(s.k, "key"), v = heads(s.v, "value"), lengths = 0;

    if (has_past(s)) lengths = block("rows_with_new_ones", DataType::i64, {s.batch, 1, 1, 1});
    if (has_past(s) || wanted[kPresentKey] || wanted[kPresentValue]) {
      const auto cache = [&](size_t output, const char* name, const Dims& dims) {
        return wanted[output]
                   ? graph.bound(uid_of_output(static_cast<int>(output)), name, type, dims)
                   : graph.made(name, dims, type);
      };
      const int64_t all_k = cache(kPresentKey, "present_key", cache_k),
                    all_v = cache(kPresentValue, "present_value", cache_v);
      graph.node("cache_append");
      // Only K and V are appended; the op wants some Q beside them, of as many rows.
      graph.tensor("q", k), graph.tensor("k", k), graph.tensor("v", v);
      if (has_past(s)) {
        const auto past = [&](size_t input, const char* name) {
          return graph.bound(uid_of_input(static_cast<int>(input)), name, type, inputs[input].dims);
        };
        graph.tensor("past_k", past(kPastKey, "past_key"));
        graph.tensor("past_v", past(kPastValue, "past_value"));
        graph.tensor("seq_len_kv", lengths);
      }
      graph.tensor("present_k", all_k), graph.tensor("present_v", all_v);
      k = all_k, v = all_v;
    }
    if (gathered) {
      k = block("gathered_key", type, {s.batch, s.heads, s.total(), s.k.columns});
      v = block("gathered_value", type, {s.batch, s.heads, s.total(), s.v.columns});
    }
    // Of a shared buffer the rows that there are, as a tensor tells; plans serve all of them.
    const bool has_lengths = shares && !gathered;
    const int64_t keys = has_lengths ? s.capacity : s.total();
    const int64_t rows =
        has_lengths ? block("rows", DataType::i64, {s.batch, 1, 1, 1}) : int64_t{0};
    int64_t mask = 0, bias = 0;
    if (has_mask(inputs, s))
      mask = block("mask", DataType::f32, {s.batch, 1, mask_rows(inputs, s), keys});
    if (const Value& given = inputs[kAttentionBias]; given.is_given()) {
      Dims dims = given.dims;
      dims[3] = keys;
      bias = has_lengths ? block("attention_bias", type, dims)
                         : graph.bound(uid_of_input(kAttentionBias), "attention_bias", type, dims);
    }

    const auto attend = [&](int64_t o) {
      graph.node("sdpa");
      graph.tensor("q", q), graph.tensor("k", k), graph.tensor("v", v), graph.tensor("o", o);
      graph.number("attn_scale",
                   scale_ != 0 ? scale_ : 1 / std::sqrt(static_cast<double>(s.q.columns)));
    };
    const Dims y{s.batch, s.heads, s.q.rows, s.v.columns};
    attend(graph.bound(uid_of_output(kOutput), "output", type, y,
                       {s.q.rows * s.heads * y[3], y[3], s.heads * y[3], 1}));
    if (has_lengths) {
      graph.flag("padding_mask", true);
      graph.tensor("seq_len_q", rows), graph.tensor("seq_len_kv", lengths);
    }
    if (is_causal_ && s.q.rows > 1 && !is_causal_by_mask(s)) {
      graph.choice("diagonal_alignment", "bottom_right");
      graph.integer("right_bound", 0);
    }
    if (mask != 0 && bias != 0) {
      const int64_t score = graph.made(nullptr);
      graph.tensor("score_mod.score_in", score);
      graph.tensor("score_mod.score_out", graph.pointwise("add", {score, mask}));
    }
    if (const int64_t added = bias != 0 ? bias : mask; added != 0) graph.tensor("bias", added);
    if (wanted[kScores]) {
      attend(graph.made("unused", y, type));
      graph.tensor("scores", graph.bound(uid_of_output(kScores), "qk", type));
    }
    HEDDLE_ASSIGN(recipe.graph, graph.finish());
    return recipe;
  }

  Status prepare(Inputs inputs, const Wanted& wanted, std::span<const Value>,
                 std::span<void* const> blocks) const override {
    HEDDLE_ASSIGN(const Shapes s, shapes_of(inputs));
    const DataType type = *inputs[kQuery].dtype;
    const bool gathered = s.capacity > 0 && is_gathered(inputs, wanted);
    size_t next = 0;
    for (const Part* part : {&s.q, &s.k, &s.v}) {
      if (!part->is_copied()) continue;
      const int64_t rows = part->rows, columns = part->columns;
      copy_rows(inputs, s, *part, blocks[next++],
                {s.heads * rows * columns, rows * columns, columns, 1});
    }
    if (has_past(s)) std::fill_n(static_cast<int64_t*>(blocks[next++]), s.batch, s.total());
    if (gathered) {
      HEDDLE_TRY(gather(inputs, s, s.k, kPastKey, blocks[next++]));
      HEDDLE_TRY(gather(inputs, s, s.v, kPastValue, blocks[next++]));
    }
    const bool has_lengths = s.capacity > 0 && !gathered;
    if (has_lengths) std::fill_n(static_cast<int64_t*>(blocks[next++]), s.batch, s.q.rows);
    const int64_t keys = has_lengths ? s.capacity : s.total();
    if (has_mask(inputs, s)) {
      auto* to = static_cast<float*>(blocks[next++]);
      const bool hides = is_causal_by_mask(s);
      for (int64_t b = 0; b < s.batch; ++b)
        for (int64_t i = 0; i < mask_rows(inputs, s); ++i)
          for (int64_t j = 0; j < keys; ++j)
            *to++ = hides && is_hidden(s, i, j) ? -std::numeric_limits<float>::infinity()
                    : j < s.total()             ? static_cast<float>(masked(inputs, s, b, i, j))
                                                : 0;
    }
    if (const Value& given = inputs[kAttentionBias]; given.is_given() && has_lengths) {
      const int64_t rows = given.dims[0] * given.dims[1] * given.dims[2];
      for (int64_t row = 0; row < rows; ++row)
        for (int64_t j = 0; j < keys; ++j)
          store(type, blocks[next], row * keys + j,
                j < s.total() ? load(type, given.data, row * s.total() + j) : 0);
    }
    return {};
  }

  /// qk has what is added to the scores too, and the least number there is where a causal row does
  /// not see.
  void finish(Inputs inputs, std::span<const Value> outputs) const override {
    const Value& scores = outputs[kScores];
    if (!scores.is_given()) return;
    const Result<Shapes> shapes = shapes_of(inputs);
    const Value& bias = inputs[kAttentionBias];
    if (!is_causal_ && !bias.is_given() && !inputs[kMask].is_given()) return;
    const Dims& dims = scores.dims;
    int64_t at = 0;
    for (int64_t b = 0; b < dims[0]; ++b) {
      for (int64_t h = 0; h < dims[1]; ++h) {
        for (int64_t i = 0; i < dims[2]; ++i) {
          for (int64_t j = 0; j < dims[3]; ++j, ++at) {
            if (is_hidden(*shapes, i, j)) {
              store(*scores.dtype, scores.data, at, least(*scores.dtype));
              continue;
            }
            double value = load(*scores.dtype, scores.data, at);
            value += masked(inputs, *shapes, b, i, j);
            if (bias.is_given()) {
              const int64_t row =
                  ((bias.dims[0] == 1 ? 0 : b) * bias.dims[1] + (bias.dims[1] == 1 ? 0 : h)) *
                      dims[2] +
                  i;
              value += load(*bias.dtype, bias.data, row * dims[3] + j);
            }
            store(*scores.dtype, scores.data, at, value);
          }
        }
      }
    }
  }

 private:
  static constexpr int64_t kMostScores = int64_t{1} << 56;  ///< whose bytes a number can count

  Status read(Attributes& attributes) {
    HEDDLE_ASSIGN(heads_, attributes.required_integer("num_heads"));
    HEDDLE_ASSIGN(scale_, attributes.number("scale", 0));
    HEDDLE_ASSIGN(filter_, attributes.number("mask_filter_value", -10000));
    HEDDLE_ASSIGN(const int64_t causal, attributes.integer("unidirectional", 0));
    is_causal_ = causal == 1;
    if (heads_ < 1 || heads_ > INT32_MAX)
      return error(Code::invalid_value, "num_heads must be positive. Got {}", heads_);
    if (!std::isfinite(scale_))
      return error(Code::invalid_value, "scale must be finite. Got {}", scale_);
    if (std::isnan(filter_) || filter_ == std::numeric_limits<double>::infinity())
      return error(Code::invalid_value, "mask_filter_value must be a number or -inf. Got {}",
                   filter_);
    return {};
  }

  static double least(DataType type) {
    switch (type) {
      case DataType::f16:
        return -65504;
      case DataType::bf16:
        return -0x1.fep127;
      default:
        return std::numeric_limits<float>::lowest();
    }
  }

  // ---- Past rows ----

  static bool has_past(const Shapes& s) { return s.past > 0 || s.capacity > 0; }

  /// Whether past and present are buffers of one length, of which past_sequence_length says how
  /// much holds rows.
  static bool shares_buffer(Inputs inputs) {
    return inputs[kPastLength].is_given() && inputs[kPastKey].is_given();
  }

  static Result<int64_t> past_length(Inputs inputs) {
    const Value& given = inputs[kPastLength];
    if (element_count(given.dims) != 1)
      return error(Code::invalid_value,
                   "past_sequence_length tensor must be of one element when "
                   "past_present_share_buffer is set");
    return *static_cast<const int32_t*>(given.data);
  }

  /// Whether the keys of a shared buffer are written out, as many as there are: rows of several
  /// beams, or scores as a result.
  static bool is_gathered(Inputs inputs, const Wanted& wanted) {
    return inputs[kIndirection].is_given() || wanted[kScores];
  }

  /// The rows of a shared buffer that a batch entry's beam says, and new ones behind them.
  static Status gather(Inputs inputs, const Shapes& s, const Part& part, size_t past, void* to) {
    const DataType type = *inputs[kQuery].dtype;
    const Value& from = inputs[past];
    const Value& beams = inputs[kIndirection];
    const int64_t columns = part.columns, total = s.total(), bytes = size_of(type);
    for (int64_t b = 0; b < s.batch; ++b) {
      for (int64_t j = 0; j < s.past; ++j) {
        int64_t source = b;
        if (beams.is_given()) {
          const int64_t count = beams.dims[1];
          const int64_t beam = static_cast<const int32_t*>(beams.data)[b * beams.dims[2] + j];
          if (beam < 0 || beam >= count)
            return error(Code::invalid_value,
                         "cache_indirection beam index out of range. Expected [0, {}), got {} at "
                         "flattened batch_beam index {}, sequence position {}",
                         count, beam, b, j);
          source = b / count * count + beam;
        }
        for (int64_t h = 0; h < s.heads; ++h) {
          const int64_t read = ((source * s.heads + h) * s.capacity + j) * columns,
                        write = ((b * s.heads + h) * total + j) * columns;
          std::memcpy(static_cast<char*>(to) + write * bytes,
                      static_cast<const char*>(from.data) + read * bytes,
                      static_cast<size_t>(columns * bytes));
        }
      }
    }
    copy_rows(inputs, s, part, static_cast<char*>(to) + s.past * columns * bytes,
              {s.heads * total * columns, total * columns, columns, 1});
    return {};
  }

  // ---- Q, K and V ----

  /// A part's rows with their bias, to where strides of batch, heads and rows say.
  static void copy_rows(Inputs inputs, const Shapes& s, const Part& part, void* to,
                        const Dims& strides) {
    const DataType type = *inputs[kQuery].dtype;
    const auto bytes = static_cast<int64_t>(size_of(type));
    const auto* const from = static_cast<const char*>(inputs[part.input].data) + part.first * bytes;
    for (int64_t b = 0; b < s.batch; ++b) {
      for (int64_t h = 0; h < s.heads; ++h) {
        const char* const bias = part.bias < 0 ? nullptr
                                               : static_cast<const char*>(inputs[kBias].data) +
                                                     (part.bias + h * part.columns) * bytes;
        for (int64_t i = 0; i < part.rows; ++i) {
          const int64_t read = b * part.strides[0] + h * part.strides[1] + i * part.strides[2];
          const int64_t write = b * strides[0] + h * strides[1] + i * strides[2];
          copy_row(type, from + read * bytes, bias, part.columns,
                   static_cast<char*>(to) + write * bytes);
        }
      }
    }
  }

  static void copy_row(DataType type, const char* from, const char* bias, int64_t columns,
                       char* to) {
    if (!bias) {
      std::memcpy(to, from, static_cast<size_t>(columns * size_of(type)));
    } else if (type == DataType::f32) {
      const auto *x = reinterpret_cast<const float*>(from),
                 *added = reinterpret_cast<const float*>(bias);
      for (int64_t c = 0; c < columns; ++c) reinterpret_cast<float*>(to)[c] = x[c] + added[c];
    } else {
      for (int64_t c = 0; c < columns; ++c)
        store(type, to, c, load(type, from, c) + load(type, bias, c));
    }
  }

  Result<Shapes> shapes_of(Inputs inputs) const {
    Shapes s;
    s.heads = heads_;
    for (const size_t n : {kQuery, kKey, kValue}) {
      for (const int64_t dim : inputs[n].dims) {
        if (dim < 1)
          return error(Code::invalid_value, "Input '{}' has dims {}, of which none may be 0",
                       kInputs[n].name, to_string(inputs[n].dims));
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

  Status set_query(Inputs inputs, Shapes& s) const {
    const Dims& query = inputs[kQuery].dims;
    if (query.rank() == 5) {
      if (inputs[kKey].is_given() || inputs[kValue].is_given())
        return error(Code::invalid_value,
                     "Input 'query' is expected to have 3 dimensions when key is given, got 5");
      if (query[2] != heads_ || query[3] != 3)
        return error(Code::invalid_value,
                     "Expect 'query' shape (batch_size, kv_sequence_length, num_heads, 3, "
                     "head_size) for packed qkv, got {}",
                     to_string(query));
      s.batch = query[0];
      s.q = packed(kQuery, query, 0);
      return {};
    }
    if (query.rank() != 3)
      return error(Code::invalid_value,
                   "Input 'query' is expected to have 3 or 5 dimensions, got {}", query.rank());
    if (!inputs[kKey].is_given())
      return error(Code::invalid_value,
                   "Packed qkv of 3D BS3NH format is not support by MultiHeadAttention");
    if (query[2] % heads_ != 0)
      return error(Code::invalid_value,
                   "The hidden size of 'query', {}, must be a multiple of "
                   "num_heads, {}",
                   query[2], heads_);
    s.batch = query[0];
    s.q = rows_of(kQuery, query);
    return {};
  }

  Status set_key_and_value(Inputs inputs, Shapes& s) const {
    const Value &key = inputs[kKey], &value = inputs[kValue];
    if (s.q.is_packed) {
      s.k = packed(kQuery, inputs[kQuery].dims, 1), s.v = packed(kQuery, inputs[kQuery].dims, 2);
      return {};
    }
    const Dims &k = key.dims, &v = value.dims;
    if (k.rank() == 5) {
      if (value.is_given())
        return error(Code::invalid_value,
                     "Expect 'value' be none when 'key' has packed kv format.");
      if (k[0] != s.batch || k[2] != heads_ || k[3] != 2 || k[4] != s.q.columns)
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
                   "Expect rank of key and value be same, and either 3 or 4, got {} and {}",
                   k.rank(), v.rank());
    if (k[0] != s.batch || v[0] != s.batch)
      return error(Code::invalid_value,
                   "Input 'query', 'key' and 'value' shall have same dim 0 (batch_size)");
    if (k.rank() == 4) {
      if (!(k == v) || k[1] != heads_ || k[3] != s.q.columns)
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
    if (v[2] % heads_ != 0)
      return error(Code::invalid_value,
                   "The hidden size of 'value', {}, must be a multiple of "
                   "num_heads, {}",
                   v[2], heads_);
    s.k = rows_of(kKey, k), s.v = rows_of(kValue, v);
    return {};
  }

  /// Of an input [batch, rows, heads * columns].
  Part rows_of(size_t input, const Dims& dims) const {
    const int64_t columns = dims[2] / heads_;
    return {input, dims[1], columns, {dims[1] * dims[2], columns, dims[2], 1}};
  }

  /// The n-th of those that an input [batch, rows, heads, how many, columns] holds.
  static Part packed(size_t input, const Dims& dims, int64_t n) {
    const int64_t head = dims[3] * dims[4], row = dims[2] * head;
    Part part{input, dims[1], dims[4], {dims[1] * row, head, row, 1}, n * dims[4]};
    part.is_packed = true;
    return part;
  }

  Status set_bias(Inputs inputs, Shapes& s) const {
    const Value& bias = inputs[kBias];
    if (!bias.is_given()) return {};
    if (bias.dims.rank() != 1)
      return error(Code::invalid_value, "Input 'bias' is expected to have 1 dimension, got {}",
                   bias.dims.rank());
    const int64_t hidden = heads_ * s.q.columns, expected = 2 * hidden + heads_ * s.v.columns;
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

  Status set_past(Inputs inputs, Shapes& s) const {
    const Value &key = inputs[kPastKey], &value = inputs[kPastValue];
    if (key.is_given() != value.is_given())
      return error(Code::invalid_value,
                   "Input 'past_key' and 'past_value' shall be both present or both absent");
    if (!key.is_given()) return {};
    const int64_t rows = key.dims.rank() == 4 ? key.dims[2] : 0;
    for (const auto& [past, part, name] :
         {std::tuple{&key, &s.k, "past_key"}, {&value, &s.v, "past_value"}}) {
      const Dims expected{s.batch, heads_, rows, part->columns};
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

  static Status check_indirection(const Value& beams, const Shapes& s) {
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

  // ---- What is added to the scores ----

  /// Of several causal rows each sees keys up to its own, but for the last, which sees all: as in
  /// ONNX Runtime, where one row alone does so too.
  bool is_hidden(const Shapes& s, int64_t row, int64_t key) const {
    return is_causal_ && row + 1 < s.q.rows && key > s.past + row;
  }
  /// Whether that is no diagonal that ends in the corner.
  bool is_causal_by_mask(const Shapes& s) const {
    return is_causal_ && s.q.rows > 1 && s.q.rows != s.k.rows;
  }

  bool has_mask(Inputs inputs, const Shapes& s) const {
    return inputs[kMask].is_given() || is_causal_by_mask(s);
  }
  /// Rows that a mask tells apart.
  int64_t mask_rows(Inputs inputs, const Shapes& s) const {
    return is_causal_by_mask(s) || inputs[kMask].dims.rank() == 3 ? s.q.rows : 1;
  }

  static Status check_mask(const Value& mask, const Shapes& s) {
    if (!mask.is_given()) return {};
    const Dims& dims = mask.dims;
    if (dims == Dims{s.batch} || dims == Dims{3 * s.batch + 2} ||
        dims == Dims{s.batch, s.total()} || dims == Dims{s.batch, s.q.rows, s.total()})
      return {};
    return error(
        Code::invalid_value,
        "Input 'key_padding_mask' shape is not expected. Got {}, expected [{}], [{}], [{}, "
        "{}] or [{}, {}, {}]",
        to_string(dims), s.batch, 3 * s.batch + 2, s.batch, s.total(), s.batch, s.q.rows,
        s.total());
  }

  static Status check_attention_bias(const Value& bias, const Shapes& s) {
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

  /// What the mask adds to a score. Of lengths with places behind them the lengths alone count, as
  /// in ONNX Runtime.
  double masked(Inputs inputs, const Shapes& s, int64_t b, int64_t i, int64_t j) const {
    const Value& mask = inputs[kMask];
    if (!mask.is_given()) return 0;
    const auto* const data = static_cast<const int32_t*>(mask.data);
    switch (mask.dims.rank()) {
      case 1:
        return j < data[b] ? 0 : filter_;
      case 2:
        return data[b * s.total() + j] > 0 ? 0 : filter_;
      default:
        return data[(b * s.q.rows + i) * s.total() + j] > 0 ? 0 : filter_;
    }
  }

  int64_t heads_ = 0;
  double scale_ = 0, filter_ = 0;
  bool is_causal_ = false;
};

/// The query's, with columns as V has them.
std::optional<SymbolicDims> shape(const ShapeContext& context) {
  std::optional<SymbolicDims> query = context.input(kQuery);
  if (!query) return {};
  if (query->size() == 5) {
    const int64_t heads = (*query)[2].number, columns = (*query)[4].number;
    if (heads < 0 || heads > INT32_MAX || columns < 0 || columns > INT32_MAX) return {};
    return SymbolicDims{(*query)[0], (*query)[1], {heads * columns, ""}};
  }
  if (query->size() != 3 || !context.has_input(kValue)) return query;
  const std::optional<SymbolicDims> value = context.input(kValue);
  if (!value) return {};
  if (value->size() == 3) query->back() = value->back();
  return query;
}

}  // namespace

const Operator kMultiHeadAttention{"MultiHeadAttention",     1,    kInputs, kOutputs, kOverloads,
                                   MultiHeadAttention::make, shape};

}  // namespace heddle::onnxruntime
