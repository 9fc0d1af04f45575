#include "onnxruntime/onnx/rms_norm.h"

#include <cmath>
#include <cstring>
#include <iterator>

#include "onnxruntime/graph_builder.h"

namespace heddle::onnxruntime {
namespace {

using abi::ElementType;

enum : size_t { kX, kScale };
enum : size_t { kY, kInvStdVar };

constexpr Port kInputs[] = {{"X", ElementType::undefined, 0}, {"scale", ElementType::undefined, 1}};
constexpr Port kOutputs[] = {{"Y", ElementType::undefined, 1},
                             {"inv_std_var", ElementType::f32, 0, true}};

// Every type of X with every one of scale and Y, but f64 with others.
constexpr Overload kOverloads[] = {
    {{ElementType::f32, ElementType::f32}},   {{ElementType::f32, ElementType::f16}},
    {{ElementType::f32, ElementType::bf16}},  {{ElementType::f16, ElementType::f16}},
    {{ElementType::f16, ElementType::f32}},   {{ElementType::f16, ElementType::bf16}},
    {{ElementType::bf16, ElementType::bf16}}, {{ElementType::bf16, ElementType::f32}},
    {{ElementType::bf16, ElementType::f16}},  {{ElementType::f64, ElementType::f64}},
};

class RmsNormalization : public Node {
 public:
  static Result<std::unique_ptr<Node>> make(Attributes& attributes) {
    auto node = std::make_unique<RmsNormalization>();
    HEDDLE_ASSIGN(node->axis_, attributes.integer("axis", -1));
    HEDDLE_ASSIGN(node->epsilon_, attributes.number("epsilon", 1e-5));
    if (!(std::isfinite(node->epsilon_) && node->epsilon_ >= 0)) {
      return error(Code::invalid_value, "epsilon must be finite and not negative. Got {}",
                   node->epsilon_);
    }
    return std::unique_ptr<Node>(std::move(node));
  }

  Result<Recipe> recipe(Inputs inputs, const Wanted& wanted, int64_t) const override {
    const Value &x = inputs[kX], &scale = inputs[kScale];
    const int rank = x.dims.rank();
    if (axis_ < -rank || axis_ >= rank) {
      return error(Code::invalid_value,
                   "axis must be from -{} to {}, as X has {} dimensions. Got {}", rank, rank - 1,
                   rank, axis_);
    }
    const int first = static_cast<int>(axis_ < 0 ? axis_ + rank : axis_);
    HEDDLE_TRY(check_scale(x.dims, scale.dims, first));

    Recipe recipe;
    Dims statistic = x.dims;
    int64_t rows = 1, width = 1;
    for (int n = 0; n < rank; ++n) {
      (n < first ? rows : width) *= x.dims[n];
      if (n >= first) statistic[n] = 1;
    }
    recipe.outputs = {{x.dims, *scale.dtype}, {statistic, DataType::f32}};
    if (element_count(x.dims) == 0) return recipe;

    GraphBuilder graph("rms_normalization");
    const bool is_spread = element_count(scale.dims) != width;
    if (is_spread) recipe.prepared_bytes = {static_cast<size_t>(width * size_of(*scale.dtype))};
    const int64_t in = graph.bound(uid_of_input(kX), "X", *x.dtype, {rows, width}),
                  weight = graph.bound(is_spread ? uid_of_prepared(0) : uid_of_input(kScale),
                                       "scale", *scale.dtype, {1, width}),
                  out = graph.bound(uid_of_output(kY), "Y", *scale.dtype),
                  epsilon = graph.constant("epsilon", epsilon_);
    graph.node("rms_norm");
    graph.tensor("x", in), graph.tensor("scale", weight), graph.tensor("epsilon", epsilon);
    graph.tensor("y", out);
    if (wanted.size() > kInvStdVar && wanted[kInvStdVar])
      graph.tensor("inv_variance",
                   graph.bound(uid_of_output(kInvStdVar), "inv_std_var", DataType::f32));
    HEDDLE_ASSIGN(recipe.graph, graph.finish());
    return recipe;
  }

  /// A scale that is broadcast, written out for every element that is normalised.
  Status prepare(Inputs inputs, const Wanted&, std::span<const Value>,
                 std::span<void* const> blocks) const override {
    if (blocks.empty()) return {};
    const Dims &x = inputs[kX].dims, &scale = inputs[kScale].dims;
    const int rank = x.rank(), first = static_cast<int>(axis_ < 0 ? axis_ + rank : axis_);
    const auto bytes = static_cast<size_t>(size_of(*inputs[kScale].dtype));
    const auto* const from = static_cast<const char*>(inputs[kScale].data);
    auto* to = static_cast<char*>(blocks[0]);
    int64_t width = 1;
    for (int n = first; n < rank; ++n) width *= x[n];
    for (int64_t i = 0; i < width; ++i, to += bytes) {
      int64_t rest = i, place = 0, stride = 1;
      for (int n = rank - 1; n >= first; --n) {
        const int own = n - (rank - scale.rank());
        const int64_t dim = own < 0 ? 1 : scale[own];
        if (dim != 1) place += rest % x[n] * stride;
        stride *= dim, rest /= x[n];
      }
      std::memcpy(to, from + static_cast<size_t>(place) * bytes, bytes);
    }
    return {};
  }

 private:
  /// A scale has X's normalised dims, or what is broadcast to them.
  static Status check_scale(const Dims& x, const Dims& scale, int first) {
    const int behind = x.rank() - scale.rank();
    bool fits = behind >= 0;
    for (int n = 0; fits && n < scale.rank(); ++n)
      fits = scale[n] == 1 || (n + behind >= first && scale[n] == x[n + behind]);
    if (fits) return {};
    return error(Code::invalid_value,
                 "scale has dims {}, expected those of X from axis {} on, or what is broadcast to "
                 "them. X has dims {}",
                 to_string(scale), first, to_string(x));
  }

  int64_t axis_ = -1;
  double epsilon_ = 1e-5;
};

std::optional<SymbolicDims> shape(const ShapeContext& context) { return context.input(kX); }

}  // namespace

// stash_type, in which the mean is taken, is not read: it is f32, or f64 of X in f64.
const Operator kRmsNormalization{"RMSNormalization",     23,   kInputs, {kOutputs, 1}, kOverloads,
                                 RmsNormalization::make, shape};
const Operator kSimplifiedLayerNormalization{
    "SimplifiedLayerNormalization", 1,    kInputs, kOutputs, kOverloads,
    RmsNormalization::make,         shape};

}  // namespace heddle::onnxruntime
