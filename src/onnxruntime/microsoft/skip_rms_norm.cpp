#include "onnxruntime/microsoft/skip_rms_norm.h"

#include <algorithm>
#include <cmath>

#include "onnxruntime/graph_builder.h"

namespace heddle::onnxruntime {
namespace {

using abi::ElementType;

enum : size_t { kInput, kSkip, kGamma, kBias };
enum : size_t { kOutput, kMean, kInvStdVar, kSum };

constexpr Port kInputs[] = {
    {"input"}, {"skip"}, {"gamma"}, {"bias", ElementType::undefined, 0, true}};
constexpr Port kOutputs[] = {{"output"},
                             {"mean", ElementType::f32, 0, true},
                             {"inv_std_var", ElementType::f32, 0, true},
                             {"input_skip_bias_sum", ElementType::undefined, 0, true}};
constexpr Overload kOverloads[] = {
    {{ElementType::f32}}, {{ElementType::f16}}, {{ElementType::bf16}}};

float widened(float x) { return x; }
float widened(float16 x) { return to_float(x); }
float widened(bfloat16 x) { return to_float(x); }
void narrow(float x, float& out) { out = x; }
void narrow(float x, float16& out) { out = to_float16(x); }
void narrow(float x, bfloat16& out) { out = to_bfloat16(x); }

/// Rows of `width` elements; those of skip begin anew after `skip_rows`.
struct Sums {
  int64_t rows, width, skip_rows;
  const void *input, *skip, *bias;  ///< no bias: null
  float* sums;                      ///< unrounded; or null
  void* rounded;                    ///< or null

  /// In f32, in the order that the operator's users know: input, skip, bias.
  template <class T>
  void write() const {
    const auto* x = static_cast<const T*>(input);
    const auto* const b = static_cast<const T*>(bias);
    float* to = sums;
    auto* out = static_cast<T*>(rounded);
    for (int64_t row = 0; row < rows; ++row, x += width) {
      const T* const y = static_cast<const T*>(skip) + row % skip_rows * width;
      for (int64_t n = 0; n < width; ++n) {
        float sum = widened(x[n]) + widened(y[n]);
        if (b) sum += widened(b[n]);
        if (to) to[n] = sum;
        if (out) narrow(sum, out[n]);
      }
      if (to) to += width;
      if (out) out += width;
    }
  }
};

class SkipRmsNormalization : public Node {
 public:
  static Result<std::unique_ptr<Node>> make(Attributes& attributes) {
    auto node = std::make_unique<SkipRmsNormalization>();
    HEDDLE_ASSIGN(node->epsilon_, attributes.number("epsilon", 1e-12));
    if (!(std::isfinite(node->epsilon_) && node->epsilon_ >= 0)) {
      return error(Code::invalid_value, "epsilon must be finite and not negative. Got {}",
                   node->epsilon_);
    }
    return std::unique_ptr<Node>(std::move(node));
  }

  Result<Recipe> recipe(Inputs inputs, const Wanted& wanted, int64_t) const override {
    HEDDLE_TRY(check(inputs));
    const Dims& x = inputs[kInput].dims;
    const DataType type = *inputs[kInput].dtype;
    const int64_t width = x[x.rank() - 1], rows = *element_count(x) / width;
    Dims statistic = x;
    statistic[x.rank() - 1] = 1;
    Recipe recipe;
    recipe.outputs = {{x, type}, {statistic, DataType::f32}, {statistic, DataType::f32}, {x, type}};
    if (rows == 0) return recipe;

    GraphBuilder graph("skip_simplified_layer_normalization");
    const bool reads_output = is_read_from_output(type, wanted);
    if (!reads_output) recipe.prepared_bytes = {static_cast<size_t>(rows * width) * sizeof(float)};
    const int64_t sum = graph.bound(reads_output ? uid_of_output(kSum) : uid_of_prepared(0), "sum",
                                    DataType::f32, {rows, width}),
                  gamma = graph.bound(uid_of_input(kGamma), "gamma", type, {1, width}),
                  out = graph.bound(uid_of_output(kOutput), "output", type),
                  epsilon = graph.constant("epsilon", epsilon_);
    graph.node("rms_norm");
    graph.tensor("x", sum), graph.tensor("scale", gamma), graph.tensor("epsilon", epsilon);
    graph.tensor("y", out);
    if (wanted[kInvStdVar])
      graph.tensor("inv_variance",
                   graph.bound(uid_of_output(kInvStdVar), "inv_std_var", DataType::f32));
    HEDDLE_ASSIGN(recipe.graph, graph.finish());
    return recipe;
  }

  /// The sums, and the mean: 0, as none is taken off.
  Status prepare(Inputs inputs, const Wanted& wanted, std::span<const Value> outputs,
                 std::span<void* const> blocks) const override {
    const Dims& x = inputs[kInput].dims;
    const int64_t width = x[x.rank() - 1], rows = *element_count(x) / width;
    if (rows == 0) return {};
    if (wanted[kMean]) std::fill_n(static_cast<float*>(outputs[kMean].data), rows, 0.F);
    const Sums sums{rows,
                    width,
                    *element_count(inputs[kSkip].dims) / width,
                    inputs[kInput].data,
                    inputs[kSkip].data,
                    inputs[kBias].is_given() ? inputs[kBias].data : nullptr,
                    blocks.empty() ? nullptr : static_cast<float*>(blocks[0]),
                    wanted[kSum] ? outputs[kSum].data : nullptr};
    switch (*inputs[kInput].dtype) {
      case DataType::f16:
        sums.write<float16>();
        return {};
      case DataType::bf16:
        sums.write<bfloat16>();
        return {};
      default:
        sums.write<float>();
        return {};
    }
  }

 private:
  /// Whether the sums that are a result are those that are normalised: in f32 they are not rounded.
  static bool is_read_from_output(DataType type, const Wanted& wanted) {
    return type == DataType::f32 && wanted[kSum];
  }

  static Status check(Inputs inputs) {
    const Dims &x = inputs[kInput].dims, &skip = inputs[kSkip].dims;
    for (const auto& [dims, name] : {std::pair{&x, "input"}, {&skip, "skip"}}) {
      if (dims->rank() != 2 && dims->rank() != 3)
        return error(Code::invalid_value, "{} is expected to have 3 or 2 dimensions, got {}", name,
                     dims->rank());
    }
    const int64_t width = x[x.rank() - 1];
    if (width < 1 || width > INT32_MAX)
      return error(Code::invalid_value,
                   "hidden_size must be positive and no greater than {}. Got {}.", INT32_MAX,
                   width);
    for (int n = 1; n <= 2; ++n) {
      if (skip[skip.rank() - n] != x[x.rank() - n])
        return error(Code::invalid_value, "last two dimensions of skip needs to be same as input");
    }
    if (skip.rank() > x.rank() || (skip.rank() == 3 && skip[0] != x[0] && skip[0] != 1))
      return error(
          Code::invalid_value,
          "skip is expected to have same shape as input or, a batch size of 1 or no batch size "
          "when input has 3 dimensions");
    for (const auto& [input, name] : {std::pair{kGamma, "gamma"}, {kBias, "bias"}}) {
      if (!inputs[input].is_given()) continue;
      const Dims& dims = inputs[input].dims;
      if (dims.rank() != 1)
        return error(Code::invalid_value, "{} is expected to have 1 dimension, got {}", name,
                     dims.rank());
      if (dims[0] != width)
        return error(Code::invalid_value, "Last dimension of {} and input does not match", name);
    }
    return {};
  }

  double epsilon_ = 1e-12;
};

std::optional<SymbolicDims> shape(const ShapeContext& context) { return context.input(kInput); }

}  // namespace

const Operator kSkipSimplifiedLayerNormalization{
    "SkipSimplifiedLayerNormalization", 1,    kInputs, kOutputs, kOverloads,
    SkipRmsNormalization::make,         shape};

}  // namespace heddle::onnxruntime
