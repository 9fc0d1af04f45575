#include "onnxruntime/onnx/norm.h"

#include <cmath>
#include <cstring>
#include <iterator>

#include "onnxruntime/graph_builder.h"

namespace heddle::onnxruntime {
namespace {

using abi::ElementType;

enum : size_t { kX, kScale, kBias };
enum : size_t { kY };

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

constexpr Port kCentredInputs[] = {{"X"}, {"Scale"}, {"B", ElementType::undefined, 0, true}};
constexpr Port kCentredOutputs[] = {
    {"Y"}, {"Mean", ElementType::f32, 0, true}, {"InvStdDev", ElementType::f32, 0, true}};
constexpr Overload kCentredOverloads[] = {
    {{ElementType::f32}}, {{ElementType::f16}}, {{ElementType::bf16}}, {{ElementType::f64}}};

/// Which element of an operand that is broadcast to X's dims stands at element i of those from
/// `first` on.
int64_t place_of(const Dims& operand, const Dims& x, int first, int64_t i) {
  int64_t place = 0, stride = 1;
  for (int n = x.rank() - 1; n >= first; --n) {
    const int own = n - (x.rank() - operand.rank());
    const int64_t dim = own < 0 ? 1 : operand[own];
    if (dim != 1) place += i % x[n] * stride;
    stride *= dim, i /= x[n];
  }
  return place;
}

/// X as rows of what is normalised together: the dims from `first` on.
struct Rows {
  int first;
  int64_t count = 1, width = 1;

  Rows(const Dims& x, int64_t axis) : first(static_cast<int>(axis < 0 ? axis + x.rank() : axis)) {
    for (int n = 0; n < x.rank(); ++n) (n < first ? count : width) *= x[n];
  }
  /// Whether an operand that is broadcast to X has other numbers for other rows.
  bool has_another_for_each(const Value& operand, const Dims& x) const {
    const int behind = x.rank() - operand.dims.rank();
    for (int n = 0; n < operand.dims.rank(); ++n)
      if (n + behind < first && operand.dims[n] != 1) return true;
    return false;
  }
};

/// RMSNorm, or LayerNorm, which is that of rows whose mean is taken off.
template <bool kCentred>
class Normalization : public Node {
 public:
  static Result<std::unique_ptr<Node>> make(Attributes& attributes) {
    auto node = std::make_unique<Normalization>();
    HEDDLE_ASSIGN(node->axis_, attributes.integer("axis", -1));
    HEDDLE_ASSIGN(node->epsilon_, attributes.number("epsilon", 1e-5F));
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
    for (size_t n = kScale; n < inputs.size(); ++n)
      HEDDLE_TRY(check_broadcast(ports()[n].name, inputs[n], x.dims));

    const Rows rows(x.dims, axis_);
    Recipe recipe;
    Dims statistic = x.dims;
    for (int n = rows.first; n < rank; ++n) statistic[n] = 1;
    recipe.outputs.assign(kInverse + 1, {statistic, DataType::f32});
    recipe.outputs[kY] = {x.dims, *scale.dtype};
    if (rows.count == 0) return recipe;
    if (is_plain(rows))
      recipe.on_host = "rows of fewer than two elements are normalised";
    else if (finishes_rows(inputs, rows))
      recipe.on_host = "scale or bias has other numbers for other rows";
    if (is_plain(rows)) return recipe;

    GraphBuilder graph(kCentred ? "layer_normalization" : "rms_normalization");
    const int64_t in = graph.bound(uid_of_input(kX), "X", *x.dtype, {rows.count, rows.width});
    const auto weights = [&](size_t input) {
      int64_t uid = uid_of_input(static_cast<int>(input));
      if (!lies_as_read(inputs, rows, input)) {
        if (recipe.on_host.empty()) recipe.on_host = "scale or bias is broadcast within a row";
        uid = uid_of_prepared(static_cast<int>(recipe.prepared_bytes.size()));
        recipe.prepared_bytes.push_back(
            static_cast<size_t>(rows.width * size_of(*inputs[input].dtype)));
      }
      return graph.bound(uid, ports()[input].name, *inputs[input].dtype, {1, rows.width});
    };
    const int64_t weight = weights(kScale), bias = has_bias(inputs, rows) ? weights(kBias) : 0,
                  out = graph.bound(uid_of_output(kY), "Y", *scale.dtype),
                  epsilon = graph.constant("epsilon", epsilon_);
    graph.node(kCentred ? "layer_norm" : "rms_norm");
    graph.tensor("x", in), graph.tensor("scale", weight), graph.tensor("epsilon", epsilon);
    if (bias != 0) graph.tensor("bias", bias);
    graph.tensor("y", out);
    const auto statistics = [&](size_t output, const char* port) {
      if (output < wanted.size() && wanted[output])
        graph.tensor(port,
                     graph.bound(uid_of_output(static_cast<int>(output)), port, DataType::f32));
    };
    if (kCentred) statistics(kMean, "mean");
    statistics(kInverse, "inv_variance");
    HEDDLE_ASSIGN(recipe.graph, graph.finish());
    return recipe;
  }

  /// Scale and bias that are broadcast, written out for every element of a row; ones in place of a
  /// scale that other rows have others of.
  Status prepare(Inputs inputs, const Wanted&, std::span<const Value>,
                 std::span<void* const> blocks) const override {
    const Dims& x = inputs[kX].dims;
    const Rows rows(x, axis_);
    auto block = blocks.begin();
    for (size_t n = kScale; n < inputs.size() && block != blocks.end(); ++n) {
      const Value& given = inputs[n];
      if (!given.is_given() || lies_as_read(inputs, rows, n)) continue;
      const bool is_later = finishes_rows(inputs, rows);
      for (int64_t i = 0; i < rows.width; ++i) {
        const double one =
            is_later ? 1 : load(*given.dtype, given.data, place_of(given.dims, x, rows.first, i));
        store(*given.dtype, *block, i, one);
      }
      ++block;
    }
    return {};
  }

  /// What the graph's ops do not take: rows of one element or none, and weights that differ from
  /// row to row.
  void finish(Inputs inputs, std::span<const Value> outputs) const override {
    const Value &x = inputs[kX], &y = outputs[kY];
    const Rows rows(x.dims, axis_);
    if (is_plain(rows)) {
      normalise_plainly(x, rows, outputs);
    } else if (!finishes_rows(inputs, rows)) {
      return;
    }
    const auto at = [&](size_t input, int64_t i) {
      const Value& given = inputs[input];
      return load(*given.dtype, given.data, place_of(given.dims, x.dims, 0, i));
    };
    const bool is_biased = kCentred && inputs[kBias].is_given();
    for (int64_t i = 0; i < rows.count * rows.width; ++i) {
      const double normalised = load(*y.dtype, y.data, i);
      store(*y.dtype, y.data, i, normalised * at(kScale, i) + (is_biased ? at(kBias, i) : 0));
    }
  }

 private:
  static constexpr size_t kMean = 1, kInverse = kCentred ? 2 : 1;  ///< outputs

  static std::span<const Port> ports() {
    if constexpr (kCentred) return kCentredInputs;
    return kInputs;
  }

  static bool is_plain(const Rows& rows) { return rows.width < 2; }

  /// Whether the graph leaves weights, and with them the bias, to be applied afterwards.
  static bool finishes_rows(Inputs inputs, const Rows& rows) {
    for (size_t n = kScale; n < inputs.size(); ++n)
      if (inputs[n].is_given() && rows.has_another_for_each(inputs[n], inputs[kX].dims))
        return true;
    return false;
  }
  static bool has_bias(Inputs inputs, const Rows& rows) {
    return kCentred && inputs[kBias].is_given() && !finishes_rows(inputs, rows);
  }
  /// Whether the graph reads the weights where the input has them.
  static bool lies_as_read(Inputs inputs, const Rows& rows, size_t input) {
    if (finishes_rows(inputs, rows)) return input == kBias;  // not read at all
    return element_count(inputs[input].dims) == rows.width;
  }

  /// Weights have X's dims, or what is broadcast to them.
  static Status check_broadcast(const char* name, const Value& given, const Dims& x) {
    if (!given.is_given()) return {};
    const int behind = x.rank() - given.dims.rank();
    bool fits = behind >= 0;
    for (int n = 0; fits && n < given.dims.rank(); ++n)
      fits = given.dims[n] == 1 || given.dims[n] == x[n + behind];
    if (fits) return {};
    return error(Code::invalid_value,
                 "{} has dims {}, expected those of X, {}, or what is broadcast to them", name,
                 to_string(given.dims), to_string(x));
  }

  /// Rows of one element, before scale and bias, and statistics of rows of none.
  void normalise_plainly(const Value& x, const Rows& rows, std::span<const Value> outputs) const {
    for (int64_t row = 0; row < rows.count; ++row) {
      const double mean = rows.width == 0 ? NAN
                          : kCentred      ? load(*x.dtype, x.data, row)
                                          : 0,
                   c = rows.width == 0 ? NAN : load(*x.dtype, x.data, row) - mean,
                   inverse = 1 / std::sqrt(c * c + epsilon_);
      const auto write = [&](size_t output, double value) {
        const Value& to = outputs[output];
        if (output < outputs.size() && to.is_given()) store(*to.dtype, to.data, row, value);
      };
      if (rows.width > 0) write(kY, c * inverse);
      if (kCentred) write(kMean, mean);
      write(kInverse, inverse);
    }
  }

  int64_t axis_ = -1;
  double epsilon_ = 0;
};

std::optional<SymbolicDims> shape(const ShapeContext& context) { return context.input(kX); }

}  // namespace

// stash_type, in which the mean is taken, is not read: it is f32, or f64 of X in f64. Statistics
// are of f32, as ONNX Runtime's kernels have them.
const Operator kRmsNormalization{
    "RMSNormalization", 23, kInputs, {kOutputs, 1}, kOverloads, Normalization<false>::make, shape};
const Operator kSimplifiedLayerNormalization{
    "SimplifiedLayerNormalization", 1,    kInputs, kOutputs, kOverloads,
    Normalization<false>::make,     shape};
// ONNX has it from 17 on; models of before have what ONNX Runtime made of theirs.
const Operator kLayerNormalization{
    "LayerNormalization",      1,    kCentredInputs, kCentredOutputs, kCentredOverloads,
    Normalization<true>::make, shape};

}  // namespace heddle::onnxruntime
