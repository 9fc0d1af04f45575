#include "onnxruntime/microsoft/skip_norm.h"

#include <cmath>

#include "onnxruntime/graph_builder.h"

namespace heddle::onnxruntime {
namespace {

using abi::ElementType;

constexpr Port kInputs[] = {
    {"input"}, {"skip"}, {"gamma"}, {"bias", ElementType::undefined, 0, true}};
constexpr Port kCentredInputs[] = {{"input"},
                                   {"skip"},
                                   {"gamma"},
                                   {"beta", ElementType::undefined, 0, true},
                                   {"bias", ElementType::undefined, 0, true}};
enum : size_t { kInput, kSkip, kGamma, kBeta };

enum : size_t { kOutput, kMean, kInvStdVar, kSum };
constexpr Port kOutputs[] = {{"output"},
                             {"mean", ElementType::f32, 0, true},
                             {"inv_std_var", ElementType::f32, 0, true},
                             {"input_skip_bias_sum", ElementType::undefined, 0, true}};
constexpr Overload kOverloads[] = {
    {{ElementType::f32}}, {{ElementType::f16}}, {{ElementType::bf16}}, {{ElementType::f64}}};

/// RMSNorm of the sum, or LayerNorm, which is that of rows whose mean is taken off.
template <bool kCentred>
class SkipNormalization : public Node {
 public:
  static Result<std::unique_ptr<Node>> make(Attributes& attributes) {
    auto node = std::make_unique<SkipNormalization>();
    HEDDLE_ASSIGN(node->epsilon_, attributes.number("epsilon", 1e-12F));
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
    const int64_t width = x.back(), rows = *element_count(x) / width,
                  skip_rows = *element_count(inputs[kSkip].dims) / width;
    Dims statistic = x;
    statistic[x.rank() - 1] = 1;
    Recipe recipe;
    recipe.outputs = {{x, type}, {statistic, DataType::f32}, {statistic, DataType::f32}, {x, type}};
    if (rows == 0) return recipe;

    GraphBuilder graph(kCentred ? "skip_layer_normalization"
                                : "skip_simplified_layer_normalization");
    // The rows of skip begin anew for each batch entry that it has none for.
    const Dims dims{rows / skip_rows, skip_rows, width};
    const int64_t input = graph.bound(uid_of_input(kInput), "input", type, dims),
                  skip = graph.bound(uid_of_input(kSkip), "skip", type, dims, {0, width, 1}),
                  output = graph.bound(uid_of_output(kOutput), "output", type),
                  epsilon = graph.constant("epsilon", epsilon_);
    const auto weights = [&](size_t n) {
      return graph.bound(uid_of_input(static_cast<int>(n)), ports()[n].name, type, {1, 1, width});
    };
    const auto statistics = [&](size_t n, const char* port) {
      if (wanted[n])
        graph.tensor(port, graph.bound(uid_of_output(static_cast<int>(n)), port, DataType::f32));
    };
    const int64_t gamma = weights(kGamma),
                  beta = kCentred && inputs[kBeta].is_given() ? weights(kBeta) : 0,
                  bias = inputs[kBias].is_given() ? weights(kBias) : 0;
    graph.node(kCentred ? "layer_norm" : "rms_norm");
    graph.tensor("x", input), graph.tensor("residual", skip), graph.tensor("scale", gamma);
    if (beta != 0) graph.tensor("bias", beta);
    if (bias != 0) graph.tensor("residual_bias", bias);
    graph.tensor("epsilon", epsilon), graph.tensor("y", output);
    if (kCentred) statistics(kMean, "mean");
    statistics(kInvStdVar, "inv_variance");
    if (wanted[kSum]) graph.tensor("sum", graph.bound(uid_of_output(kSum), "sum", type));
    if (!kCentred && wanted[kMean]) {  // without a mean that is taken off it is 0
      graph.elementwise("mul", {graph.index(2, rows), graph.constant("zero", 0)},
                        graph.bound(uid_of_output(kMean), "mean", DataType::f32, {1, 1, rows, 1}));
    }
    HEDDLE_ASSIGN(recipe.graph, graph.finish());
    return recipe;
  }

 private:
  static constexpr size_t kBias = kCentred ? kBeta + 1 : kBeta;

  static std::span<const Port> ports() {
    if constexpr (kCentred) return kCentredInputs;
    return kInputs;
  }

  static Status check(Inputs inputs) {
    const Dims &x = inputs[kInput].dims, &skip = inputs[kSkip].dims;
    for (const auto& [dims, name] : {std::pair{&x, "input"}, {&skip, "skip"}}) {
      if (dims->rank() != 2 && dims->rank() != 3)
        return error(Code::invalid_value, "{} is expected to have 3 or 2 dimensions, got {}", name,
                     dims->rank());
    }
    const int64_t width = x.back();
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
    for (size_t n = kGamma; n < inputs.size(); ++n) {
      if (!inputs[n].is_given()) continue;
      const Dims& dims = inputs[n].dims;
      if (dims.rank() != 1)
        return error(Code::invalid_value, "{} is expected to have 1 dimension, got {}",
                     ports()[n].name, dims.rank());
      if (dims[0] != width)
        return error(Code::invalid_value, "Last dimension of {} and input does not match",
                     ports()[n].name);
    }
    return {};
  }

  double epsilon_ = 0;
};

std::optional<SymbolicDims> shape(const ShapeContext& context) { return context.input(kInput); }

}  // namespace

const Operator kSkipSimplifiedLayerNormalization{
    "SkipSimplifiedLayerNormalization", 1,    kInputs, kOutputs, kOverloads,
    SkipNormalization<false>::make,     shape};
const Operator kSkipLayerNormalization{
    "SkipLayerNormalization",      1,    kCentredInputs, kOutputs, kOverloads,
    SkipNormalization<true>::make, shape};

}  // namespace heddle::onnxruntime
