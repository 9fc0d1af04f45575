#include "onnxruntime/microsoft/multi_head_attention.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "onnxruntime/graph_builder.h"
#include "onnxruntime/microsoft/multi_head_attention_copies.h"
#include "onnxruntime/microsoft/multi_head_attention_mask.h"

namespace heddle::onnxruntime {
namespace {

using abi::ElementType;
using namespace mha;

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
    HEDDLE_ASSIGN(const Shapes s, shapes_of(inputs, heads_));
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
    const auto view = [&](size_t input, int64_t first) {
      recipe.views.push_back({input, first * size_of(type)});
      return uid_of_view(static_cast<int>(recipe.views.size()) - 1);
    };
    const auto heads = [&](const Part& part, const char* name, const char* with_bias) {
      const Dims dims{s.batch, s.heads, part.rows, part.columns};
      const int64_t rows = graph.bound(part.is_packed ? view(part.input, part.first)
                                                      : uid_of_input(static_cast<int>(part.input)),
                                       name, type, dims, part.strides);
      if (part.bias < 0) return rows;
      const int64_t bias =
          graph.bound(view(kBias, part.bias), nullptr, type, {1, s.heads, 1, part.columns});
      return graph.elementwise("add", {rows, bias}, graph.made(with_bias, dims, type));
    };
    const int64_t q = heads(s.q, "query", "query_with_bias");
    int64_t k = heads(s.k, "key", "key_with_bias"), v = heads(s.v, "value", "value_with_bias");

    int64_t all_rows = 0;  // of each entry, new ones with those before
    if (shares) {
      const int64_t past =
          graph.by_value(uid_of_input(kPastLength), "past_sequence_length", DataType::i32);
      all_rows = graph.lengths("rows_with_new_ones", s.batch,
                               graph.elementwise("add", {past, graph.whole(s.k.rows)},
                                                 graph.made(nullptr, {1}, DataType::i32)));
    } else if (s.has_past()) {
      all_rows = graph.lengths("rows_with_new_ones", s.batch, graph.whole(s.total()));
    }
    if (s.has_past() || wanted[kPresentKey] || wanted[kPresentValue]) {
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
      if (s.has_past()) {
        const auto past = [&](size_t input, const char* name) {
          return graph.bound(uid_of_input(static_cast<int>(input)), name, type, inputs[input].dims);
        };
        graph.tensor("past_k", past(kPastKey, "past_key"));
        graph.tensor("past_v", past(kPastValue, "past_value"));
        graph.tensor("seq_len_kv", all_rows);
      }
      graph.tensor("present_k", all_k), graph.tensor("present_v", all_v);
      k = all_k, v = all_v;
    }
    if (gathered) {
      recipe.on_host = "rows of a shared buffer are gathered by cache_indirection, or for qk";
      k = block("gathered_key", type, {s.batch, s.heads, s.total(), s.k.columns});
      v = block("gathered_value", type, {s.batch, s.heads, s.total(), s.v.columns});
    }
    // Of a shared buffer the rows that there are, as a tensor tells; plans serve all of them.
    const bool has_lengths = shares && !gathered;
    const int64_t keys = has_lengths ? s.capacity : s.total();
    const int64_t rows =
        has_lengths ? graph.lengths("rows", s.batch, graph.whole(s.q.rows)) : int64_t{0};
    int64_t mask = 0, bias = 0;
    const Value& added = inputs[kAttentionBias];
    if (has_lengths && (mask_.is_written(inputs, s) || added.is_given()))
      recipe.on_host = "mask or attention_bias beside a shared buffer is filled up to its length";
    if (mask_.is_written(inputs, s)) {
      mask = has_lengths ? block("mask", DataType::f32, {s.batch, 1, mask_.rows(inputs, s), keys})
                         : mask_.node(graph, inputs, s);
    }
    if (added.is_given()) {
      Dims dims = added.dims;
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
      graph.tensor("seq_len_q", rows), graph.tensor("seq_len_kv", all_rows);
    }
    if (mask_.is_causal && s.q.rows > 1 && !mask_.is_causal_by_mask(inputs, s)) {
      graph.choice("diagonal_alignment", "bottom_right");
      graph.integer("right_bound", 0);
    }
    if (mask != 0 && bias != 0) {
      const int64_t score = graph.made(nullptr);
      graph.tensor("score_mod.score_in", score);
      graph.tensor("score_mod.score_out", graph.pointwise("add", {score, mask}));
    }
    if (const int64_t one = bias != 0 ? bias : mask; one != 0) graph.tensor("bias", one);
    if (wanted[kScores]) {
      if (mask_.is_causal || mask != 0 || bias != 0)
        recipe.on_host = "qk is given with what is added to the scores";
      attend(graph.made("unused", y, type));
      graph.tensor("scores", graph.bound(uid_of_output(kScores), "qk", type));
    }
    HEDDLE_ASSIGN(recipe.graph, graph.finish());
    return recipe;
  }

  Status prepare(Inputs inputs, const Wanted& wanted, std::span<const Value>,
                 std::span<void* const> blocks) const override {
    HEDDLE_ASSIGN(const Shapes s, shapes_of(inputs, heads_));
    const DataType type = *inputs[kQuery].dtype;
    if (s.capacity == 0) return {};
    size_t next = 0;
    if (is_gathered(inputs, wanted)) {
      HEDDLE_TRY(gather(inputs, s, s.k, kPastKey, blocks[next++]));
      return gather(inputs, s, s.v, kPastValue, blocks[next]);
    }
    const int64_t keys = s.capacity;
    if (mask_.is_written(inputs, s)) {
      auto* to = static_cast<float*>(blocks[next++]);
      const bool hides = mask_.is_causal_by_mask(inputs, s);
      for (int64_t b = 0; b < s.batch; ++b)
        for (int64_t i = 0; i < mask_.rows(inputs, s); ++i)
          for (int64_t j = 0; j < keys; ++j)
            *to++ = hides && mask_.is_hidden(s, i, j) ? static_cast<float>(mask_.of_hidden(inputs))
                    : j < s.total() ? static_cast<float>(mask_.added(inputs, s, b, i, j))
                                    : 0;
    }
    if (const Value& given = inputs[kAttentionBias]; given.is_given()) {
      const int64_t rows = given.dims[0] * given.dims[1] * given.dims[2];
      for (int64_t row = 0; row < rows; ++row)
        for (int64_t j = 0; j < keys; ++j)
          store(type, blocks[next], row * keys + j,
                j < s.total() ? load(type, given.data, row * s.total() + j) : 0);
    }
    return {};
  }

  /// qk has what is added to the scores too, and the least number there is where a causal row does
  /// not see, or where its bias is infinite that, as ONNX Runtime has it.
  void finish(Inputs inputs, std::span<const Value> outputs) const override {
    const Value& scores = outputs[kScores];
    if (!scores.is_given()) return;
    const Result<Shapes> shapes = shapes_of(inputs, heads_);
    const Value& bias = inputs[kAttentionBias];
    if (!mask_.is_causal && !bias.is_given() && !inputs[kMask].is_given()) return;
    const Dims& dims = scores.dims;
    int64_t at = 0;
    for (int64_t b = 0; b < dims[0]; ++b) {
      for (int64_t h = 0; h < dims[1]; ++h) {
        for (int64_t i = 0; i < dims[2]; ++i) {
          for (int64_t j = 0; j < dims[3]; ++j, ++at) {
            double added = 0;
            if (bias.is_given()) {
              const int64_t row =
                  ((bias.dims[0] == 1 ? 0 : b) * bias.dims[1] + (bias.dims[1] == 1 ? 0 : h)) *
                      dims[2] +
                  i;
              added = load(*bias.dtype, bias.data, row * dims[3] + j);
            }
            double value = load(*scores.dtype, scores.data, at);
            if (!mask_.is_hidden(*shapes, i, j)) {
              value += mask_.added(inputs, *shapes, b, i, j) + added;
            } else {  // what is finite is lost beside the least number
              value = std::isinf(added) ? added : least(*scores.dtype);
            }
            store(*scores.dtype, scores.data, at, value);
          }
        }
      }
    }
  }

 private:
  Status read(Attributes& attributes) {
    HEDDLE_ASSIGN(heads_, attributes.required_integer("num_heads"));
    HEDDLE_ASSIGN(scale_, attributes.number("scale", 0));
    HEDDLE_ASSIGN(mask_.filter, attributes.number("mask_filter_value", -10000));
    HEDDLE_ASSIGN(const int64_t causal, attributes.integer("unidirectional", 0));
    mask_.is_causal = causal == 1;
    if (heads_ < 1 || heads_ > INT32_MAX)
      return error(Code::invalid_value, "num_heads must be positive. Got {}", heads_);
    if (!std::isfinite(scale_))
      return error(Code::invalid_value, "scale must be finite. Got {}", scale_);
    if (std::isnan(mask_.filter) || mask_.filter == std::numeric_limits<double>::infinity())
      return error(Code::invalid_value, "mask_filter_value must be a number or -inf. Got {}",
                   mask_.filter);
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

  /// Whether the keys of a shared buffer are written out, as many as there are: rows of several
  /// beams, or scores as a result.
  static bool is_gathered(Inputs inputs, const Wanted& wanted) {
    return inputs[kIndirection].is_given() || wanted[kScores];
  }

  int64_t heads_ = 0;
  double scale_ = 0;
  Mask mask_;
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
