#include "onnxruntime/microsoft/group_query_attention.h"

#include <strings.h>

#include <algorithm>
#include <bit>
#include <iterator>

#include "onnxruntime/element_types.h"
#include "onnxruntime/microsoft/group_query_attention_contents.h"

namespace heddle::onnxruntime {
namespace {

using abi::ElementType;

constexpr int kT = 0, kCache = 1;

constexpr Port kInputs[] = {
    {"query", ElementType::undefined, kT},
    {"key", ElementType::undefined, kT, true},
    {"value", ElementType::undefined, kT, true},
    {"past_key", ElementType::undefined, kCache, true},
    {"past_value", ElementType::undefined, kCache, true},
    {"seqlens_k", ElementType::i32},
    {"total_sequence_length", ElementType::i32, 0, false, false, true},
    {"cos_cache", ElementType::undefined, kT, true},
    {"sin_cache", ElementType::undefined, kT, true},
    {"position_ids", ElementType::i64, 0, true},
    {"attention_bias", ElementType::undefined, kT, true},
    {"head_sink", ElementType::undefined, kT, true},
    {"k_scale", ElementType::f32, 0, true},
    {"v_scale", ElementType::f32, 0, true},
    {"q_norm_weight", ElementType::undefined, kT, true},
    {"k_norm_weight", ElementType::undefined, kT, true},
    {"query_seqlens", ElementType::i32, 0, true},
};
static_assert(std::size(kInputs) == HEDDLE_GQA_INPUTS);

constexpr Port kOutputs[] = {
    {"output", ElementType::undefined, kT},
    {"present_key", ElementType::undefined, kCache, true},
    {"present_value", ElementType::undefined, kCache, true},
    {"output_qk", ElementType::undefined, kT, true},
};
static_assert(std::size(kOutputs) == HEDDLE_GQA_OUTPUTS);

// Caches of the query's own type before others: a node without a past has those.
constexpr Overload kOverloads[] = {
    {{ElementType::f32, ElementType::f32}},    {{ElementType::f16, ElementType::f16}},
    {{ElementType::bf16, ElementType::bf16}},  {{ElementType::f32, ElementType::i8}},
    {{ElementType::f32, ElementType::u8}},     {{ElementType::f32, ElementType::f8e4m3}},
    {{ElementType::f16, ElementType::i8}},     {{ElementType::f16, ElementType::u8}},
    {{ElementType::f16, ElementType::f8e4m3}}, {{ElementType::bf16, ElementType::i8}},
    {{ElementType::bf16, ElementType::u8}},    {{ElementType::bf16, ElementType::f8e4m3}},
};

heddle_gqa_tensor tensor(DataType dtype, const Dims& dims) {
  heddle_gqa_tensor out{c_type(dtype), dims.rank(), {}};
  std::copy(dims.begin(), dims.end(), out.dims);
  return out;
}

Result<GraphHandle> graph_of(const heddle_gqa& op) {
  heddle_graph* graph;
  HEDDLE_TRY(status_of(heddle_gqa_create(&op, &graph)));
  return GraphHandle(graph);
}

class GroupQueryAttention : public Node {
 public:
  static Result<std::unique_ptr<Node>> make(Attributes& attributes) {
    std::unique_ptr<GroupQueryAttention> node(new GroupQueryAttention);
    HEDDLE_TRY(node->read(attributes));
    HEDDLE_TRY(node->try_attributes());
    return std::unique_ptr<Node>(std::move(node));
  }

  /// total_sequence_length, or of those that the same graph serves one: within a buffer the length
  /// of the longest sequence shapes nothing but a bias and output_qk.
  Result<int64_t> number(Inputs inputs, const Wanted& wanted) const override {
    const Value& given = inputs[HEDDLE_GQA_TOTAL_SEQUENCE_LENGTH];
    if (!given.is_given())
      return error(Code::invalid_value, "Input 'total_sequence_length' is required");
    if (element_count(given.dims) != 1)
      return error(Code::invalid_value, "total_sequence_length tensor must be of one element.");
    const int64_t total = *static_cast<const int32_t*>(given.data);
    const Value& past = inputs[HEDDLE_GQA_PAST_KEY];
    if (inputs[HEDDLE_GQA_ATTENTION_BIAS].is_given() || wanted[HEDDLE_GQA_OUTPUT_QK] || total < 1 ||
        !past.is_given() || past.dims.rank() != 4)
      return total;
    int64_t most = past.dims[2];
    if (op_.sliding_window_cache != 0) {  // rings know no length but the keys there may be
      constexpr uint64_t kLeast = 4096;
      most = static_cast<int64_t>(std::min<uint64_t>(
          std::bit_ceil(std::max(static_cast<uint64_t>(total), kLeast)), INT32_MAX));
    }
    if (const Value& table = inputs[HEDDLE_GQA_COS_CACHE]; table.is_given()) {
      if (table.dims.rank() != 2) return total;
      most = std::min(most, table.dims[0]);
    }
    return std::max(total, most);
  }

  Result<Recipe> recipe(Inputs inputs, const Wanted& wanted, int64_t number) const override {
    heddle_gqa op = op_;
    op.k_quant_type = k_quant_type_.c_str(), op.v_quant_type = v_quant_type_.c_str();
    op.total_sequence_length = number;
    for (size_t n = 0; n < inputs.size(); ++n) {
      if (inputs[n].is_given()) op.inputs[n] = tensor(*inputs[n].dtype, inputs[n].dims);
    }
    std::copy(wanted.begin(), wanted.end(), op.wanted);
    Recipe recipe;
    HEDDLE_ASSIGN(recipe.graph, graph_of(op));

    const Dims& query = inputs[HEDDLE_GQA_QUERY].dims;
    const bool is_packed = !inputs[HEDDLE_GQA_KEY].is_given();
    const int64_t hidden =
        is_packed ? query[2] / (op.num_heads + 2 * op.kv_num_heads) * op.num_heads : query[2];
    const DataType type = *inputs[HEDDLE_GQA_QUERY].dtype;
    recipe.outputs.resize(std::size(kOutputs));
    recipe.outputs[HEDDLE_GQA_OUTPUT] = {{query[0], query[1], hidden}, type};
    recipe.outputs[HEDDLE_GQA_OUTPUT_QK] = {{query[0], op.num_heads, query[1], number}, type};
    for (const size_t present : {HEDDLE_GQA_PRESENT_KEY, HEDDLE_GQA_PRESENT_VALUE}) {
      if (!wanted[present]) continue;
      heddle_tensor made;
      HEDDLE_TRY(status_of(heddle_graph_tensor(recipe.graph.get(),
                                               uid_of_output(static_cast<int>(present)), &made)));
      recipe.outputs[present] = {Dims(made.dims, made.dims + made.rank), data_type(made.dtype)};
    }
    return recipe;
  }

  Status prepare(Inputs inputs, const Wanted& wanted, std::span<const Value>,
                 std::span<void* const>) const override {
    return gqa::check_contents(
        inputs, {.rotates = op_.do_rotary != 0,
                 .is_ring = op_.sliding_window_cache != 0,
                 .has_columns =
                     inputs[HEDDLE_GQA_ATTENTION_BIAS].is_given() || wanted[HEDDLE_GQA_OUTPUT_QK]});
  }

 private:
  GroupQueryAttention() { heddle_gqa_set_defaults(&op_); }

  Status read(Attributes& attributes) {
    HEDDLE_ASSIGN(op_.num_heads, attributes.required_integer("num_heads"));
    HEDDLE_ASSIGN(op_.kv_num_heads, attributes.required_integer("kv_num_heads"));
    for (const auto& [name, value] : {std::pair{"causal", &op_.causal},
                                      {"local_window_size", &op_.local_window_size},
                                      {"sliding_window_cache", &op_.sliding_window_cache},
                                      {"do_rotary", &op_.do_rotary},
                                      {"rotary_interleaved", &op_.rotary_interleaved},
                                      {"smooth_softmax", &op_.smooth_softmax},
                                      {"qk_output", &op_.qk_output},
                                      {"kv_cache_bit_width", &op_.kv_cache_bit_width}}) {
      HEDDLE_ASSIGN(*value, attributes.integer(name, *value));
    }
    for (const auto& [name, value] : {std::pair{"scale", &op_.scale},
                                      {"softcap", &op_.softcap},
                                      {"qk_norm_epsilon", &op_.qk_norm_epsilon}}) {
      HEDDLE_ASSIGN(*value, attributes.number(name, static_cast<float>(*value)));
    }
    for (const auto& [name, value] : {std::pair{"q_norm_epsilon", &op_.q_norm_epsilon},
                                      {"k_norm_epsilon", &op_.k_norm_epsilon}}) {
      HEDDLE_ASSIGN(*value, attributes.number(name, static_cast<float>(op_.qk_norm_epsilon)));
    }
    HEDDLE_ASSIGN(k_quant_type_, attributes.text("k_quant_type", "NONE"));
    HEDDLE_ASSIGN(v_quant_type_, attributes.text("v_quant_type", "NONE"));
    return {};
  }

  /// Attributes are wrong or right whatever the inputs are: a session with wrong ones is not to be
  /// made. So the smallest inputs that fit them are tried.
  Status try_attributes() const {
    constexpr int64_t kMostHeads = 1 << 20, kHeadSize = 32;
    heddle_gqa op = op_;
    op.k_quant_type = k_quant_type_.c_str(), op.v_quant_type = v_quant_type_.c_str();
    const int64_t heads = std::clamp<int64_t>(op.num_heads, 1, kMostHeads),
                  kv_heads = std::clamp<int64_t>(op.kv_num_heads, 1, kMostHeads),
                  rows = std::clamp<int64_t>(op.local_window_size, 1, INT32_MAX);
    const auto give = [&](int input, DataType dtype, const Dims& dims) {
      op.inputs[input] = tensor(dtype, dims);
    };
    const bool is_quantised = op.kv_cache_bit_width != 0;
    const DataType cache = !is_quantised                ? DataType::f32
                           : op.kv_cache_bit_width == 4 ? DataType::u8
                                                        : DataType::i8;
    const int64_t columns = cache == DataType::u8 ? kHeadSize / 2 : kHeadSize;
    op.total_sequence_length = 1;
    give(HEDDLE_GQA_QUERY, DataType::f32, {1, 1, heads * kHeadSize});
    for (const int input : {HEDDLE_GQA_KEY, HEDDLE_GQA_VALUE})
      give(input, DataType::f32, {1, 1, kv_heads * kHeadSize});
    for (const int input : {HEDDLE_GQA_PAST_KEY, HEDDLE_GQA_PAST_VALUE})
      give(input, cache, {1, kv_heads, rows, columns});
    give(HEDDLE_GQA_SEQLENS_K, DataType::i32, {1});
    give(HEDDLE_GQA_TOTAL_SEQUENCE_LENGTH, DataType::i32, {1});
    for (const int input : {HEDDLE_GQA_COS_CACHE, HEDDLE_GQA_SIN_CACHE})
      give(input, DataType::f32, {1, kHeadSize / 2});
    for (const auto& [input, type] :
         {std::pair{HEDDLE_GQA_K_SCALE, k_quant_type_}, {HEDDLE_GQA_V_SCALE, v_quant_type_}}) {
      const bool per_channel = strcasecmp(type.c_str(), "PER_CHANNEL") == 0;
      give(input, DataType::f32, {per_channel ? kv_heads * kHeadSize : 1});
    }
    op.wanted[HEDDLE_GQA_OUTPUT_QK] = op.qk_output != 0;
    return graph_of(op).status();
  }

  heddle_gqa op_;
  std::string k_quant_type_, v_quant_type_;
};

/// The query's, of which packed heads of K and V are no part.
std::optional<SymbolicDims> shape(const ShapeContext& context) {
  std::optional<SymbolicDims> query = context.input(HEDDLE_GQA_QUERY);
  if (!query || query->size() != 3 || context.has_input(HEDDLE_GQA_KEY)) return query;
  const int64_t heads = context.integer("num_heads", 0),
                kv_heads = context.integer("kv_num_heads", 0);
  int64_t& hidden = (*query)[2].number;
  if (heads < 1 || kv_heads < 1 || heads > INT32_MAX || kv_heads > INT32_MAX || hidden < 0)
    return {};
  hidden = hidden / (heads + 2 * kv_heads) * heads;
  return query;
}

}  // namespace

const Operator kGroupQueryAttention{"GroupQueryAttention",     1,    kInputs, kOutputs, kOverloads,
                                    GroupQueryAttention::make, shape};

}  // namespace heddle::onnxruntime
