#include "onnxruntime/onnx/attention.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <iterator>
#include <limits>
#include <optional>

#include "onnxruntime/graph_builder.h"

namespace heddle::onnxruntime {
namespace {

using abi::ElementType;

enum : size_t { kQ, kK, kV, kMask, kPastKey, kPastValue, kNonpad };
enum : size_t { kY, kPresentKey, kPresentValue, kScores };

constexpr Port kInputs[] = {
    {"Q"},
    {"K"},
    {"V"},
    {"attn_mask", ElementType::undefined, 0, true, true},
    {"past_key", ElementType::undefined, 0, true},
    {"past_value", ElementType::undefined, 0, true},
    {"nonpad_kv_seqlen", ElementType::i64, 0, true},
};
constexpr Port kOutputs[] = {
    {"Y"},
    {"present_key", ElementType::undefined, 0, true},
    {"present_value", ElementType::undefined, 0, true},
    {"qk_matmul_output", ElementType::undefined, 0, true},
};
constexpr Overload kOverloads[] = {
    {{ElementType::f32}}, {{ElementType::f16}}, {{ElementType::bf16}}};

/// What qk_matmul_output_mode asks for.
enum Mode : int64_t { kRaw = 0, kCapped = 1, kMasked = 2, kWeights = 3 };

/// One of Q, K, V: heads of rows, as [batch, heads, rows, columns] in memory of 4 or 3 dims.
struct Heads {
  Dims dims, strides;
};

Result<Heads> heads_of(const Value& value, const char* name, int64_t heads, const char* attribute) {
  const Dims& dims = value.dims;
  Heads out;
  if (dims.rank() == 4) {
    out = {dims, {dims[1] * dims[2] * dims[3], dims[2] * dims[3], dims[3], 1}};
    if (heads != 0 && heads != dims[1]) {
      return error(Code::invalid_value, "'{}' has {} heads, but {} is {}.", name, dims[1],
                   attribute, heads);
    }
  } else if (dims.rank() == 3) {
    if (heads < 1) {
      return error(Code::invalid_value,
                   "'{}' has 3 dimensions, for which {} must be positive. Got {}", name, attribute,
                   heads);
    }
    if (dims[2] % heads != 0) {
      return error(Code::invalid_value,
                   "The last dimension of '{}', {}, must be a multiple of {}, {}", name, dims[2],
                   attribute, heads);
    }
    const int64_t columns = dims[2] / heads;
    out = {{dims[0], heads, dims[1], columns}, {dims[1] * dims[2], columns, dims[2], 1}};
  } else {
    return error(Code::invalid_value, "'{}' must have 3 or 4 dimensions, got {}", name,
                 dims.rank());
  }
  for (const int64_t dim : out.dims) {
    if (dim < 1)
      return error(Code::invalid_value, "'{}' has dims {}, of which none may be 0", name,
                   to_string(dims));
  }
  return out;
}

/// A mask's dims with those it lacks in front.
Dims four_dims(const Dims& dims) {
  Dims out;
  for (int n = dims.rank(); n < 4; ++n) out.push_back(1);
  for (const int64_t dim : dims) out.push_back(dim);
  return out;
}

class Attention : public Node {
 public:
  static Result<std::unique_ptr<Node>> make(Attributes& attributes) {
    std::unique_ptr<Attention> node(new Attention);
    HEDDLE_TRY(node->read(attributes));
    return std::unique_ptr<Node>(std::move(node));
  }

  Result<Recipe> recipe(Inputs inputs, const Wanted& wanted, int64_t) const override {
    HEDDLE_ASSIGN(const Shapes s, shapes_of(inputs));
    const DataType type = *inputs[kQ].dtype;
    const bool present = wanted[kPresentKey] || wanted[kPresentValue];
    Recipe recipe;
    Dims y = s.q.dims;
    y[3] = s.v.dims[3];
    const bool is_flat = inputs[kQ].dims.rank() == 3;
    const Dims y_strides = is_flat ? Dims{y[1] * y[2] * y[3], y[3], y[1] * y[3], 1} : Dims{};
    Dims cache_k{y[0], s.k.dims[1], s.total(), s.k.dims[3]}, cache_v = cache_k;
    cache_v[3] = s.v.dims[3];
    recipe.outputs = {{is_flat ? Dims{y[0], y[2], y[1] * y[3]} : y, type},
                      {cache_k, type},
                      {cache_v, type},
                      {{y[0], y[1], y[2], s.total()}, type}};

    GraphBuilder graph("attention");
    const int64_t q = graph.bound(uid_of_input(kQ), "Q", type, s.q.dims, s.q.strides);
    int64_t k = graph.bound(uid_of_input(kK), "K", type, s.k.dims, s.k.strides),
            v = graph.bound(uid_of_input(kV), "V", type, s.v.dims, s.v.strides);
    if (present || s.past > 0) {
      const auto cache = [&](size_t output, const char* name, const Dims& dims) {
        return wanted[output]
                   ? graph.bound(uid_of_output(static_cast<int>(output)), name, type, dims)
                   : graph.made(name, dims, type);
      };
      const int64_t all_k = cache(kPresentKey, "present_key", cache_k),
                    all_v = cache(kPresentValue, "present_value", cache_v);
      const int64_t all_rows =
          s.past > 0 ? graph.lengths("rows_with_new_ones", y[0], graph.whole(s.total()))
                     : int64_t{0};
      graph.node("cache_append");
      // Only K and V are appended; the op wants some Q beside them, of as many rows.
      graph.tensor("q", k), graph.tensor("k", k), graph.tensor("v", v);
      if (s.past > 0) {
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

    int64_t mask = 0;
    const Value& given = inputs[kMask];
    if (given.is_given()) {
      Dims dims = four_dims(given.dims);
      const bool is_short = dims[3] < s.total();
      dims[3] = s.total();
      int64_t uid = uid_of_input(kMask);
      if (is_short) {
        recipe.on_host = "a mask of fewer keys than there are is filled up";
        recipe.prepared_bytes.push_back(
            static_cast<size_t>(*element_count(dims) * size_of(*given.dtype)));
        uid = uid_of_prepared(static_cast<int>(recipe.prepared_bytes.size()) - 1);
      }
      mask = graph.bound(uid, "attn_mask", *given.dtype, dims);
    }
    std::optional<int64_t> rows, keys;
    if (inputs[kNonpad].is_given()) {
      rows = graph.lengths("rows", y[0], graph.whole(s.q.dims[2]));
      keys = graph.bound(uid_of_input(kNonpad), "nonpad_kv_seqlen", DataType::i64, {y[0], 1, 1, 1});
    } else if (is_window_past_keys(s)) {
      rows = graph.lengths("rows", y[0], graph.whole(s.q.dims[2]));
      keys = graph.lengths("keys", y[0], graph.whole(s.total()));
    }

    const int64_t out = graph.bound(uid_of_output(kY), "Y", type, y, y_strides);
    const double scale = scale_.value_or(1 / std::sqrt(static_cast<double>(s.q.dims[3])));
    const auto attend = [&](int64_t o) {
      graph.node("sdpa");
      graph.tensor("q", q), graph.tensor("k", k), graph.tensor("v", v), graph.tensor("o", o);
      graph.number("attn_scale", scale);
    };
    attend(out);
    if (rows) {
      graph.flag("padding_mask", true);
      graph.tensor("seq_len_q", *rows), graph.tensor("seq_len_kv", *keys);
    }
    // The bounds count from a row's own position, the past's length and its place among the rows:
    // that is where a diagonal ends that begins at the bottom right, if there are as many new keys
    // as rows.
    const bool from_end = inputs[kNonpad].is_given() || s.q.dims[2] == s.k.dims[2];
    graph.choice("diagonal_alignment", from_end ? "bottom_right" : "top_left");
    if (const int64_t right = is_causal_ ? 0 : right_window_; right >= 0)
      graph.integer("right_bound", right + (from_end ? 0 : s.past));
    const bool has_window_in_score = is_window_in_score(s);
    if (left_window_ >= 0 && !has_window_in_score) graph.integer("left_bound", left_window_ + 1);
    const bool selects = given.is_given() && *given.dtype == DataType::boolean;
    score(graph, softcap_, selects ? mask : 0,
          has_window_in_score ? std::optional(s.past - left_window_) : std::nullopt);
    if (mask != 0 && !selects) graph.tensor("bias", mask);
    if (wanted[kScores]) {
      if (mode_ == kMasked) recipe.on_host = "scores are given with their mask";
      const int64_t scores = graph.bound(uid_of_output(kScores), "qk_matmul_output", type);
      if (mode_ != kWeights) {
        attend(graph.made("unused", y, type));
        score(graph, mode_ == kRaw ? 0 : softcap_);
      }
      graph.tensor("scores", scores);
      if (mode_ == kWeights) graph.flag("scores_after_softmax", true);
    }
    HEDDLE_ASSIGN(recipe.graph, graph.finish());
    return recipe;
  }

  Status prepare(Inputs inputs, const Wanted&, std::span<const Value>,
                 std::span<void* const> blocks) const override {
    HEDDLE_ASSIGN(const Shapes s, shapes_of(inputs));
    const Value& mask = inputs[kMask];
    if (mask.is_given() && four_dims(mask.dims)[3] < s.total()) pad(mask, s.total(), blocks[0]);
    if (!inputs[kNonpad].is_given()) return {};
    const auto* const keys = static_cast<const int64_t*>(inputs[kNonpad].data);
    for (int64_t b = 0; b < s.q.dims[0]; ++b) {
      if (keys[b] < 0 || keys[b] > s.total()) {
        return error(Code::invalid_value,
                     "nonpad_kv_seqlen[{}] = {} is out of range, expected 0 to {}, the length of K",
                     b, keys[b], s.total());
      }
    }
    return {};
  }

  /// Scores after the mask are those before it with what the mask adds, -inf at hidden keys.
  void finish(Inputs inputs, std::span<const Value> outputs) const override {
    const Value& scores = outputs[kScores];
    if (!scores.is_given() || mode_ != kMasked) return;
    const Result<Shapes> shapes = shapes_of(inputs);
    const Dims& dims = scores.dims;
    const Value& mask = inputs[kMask];
    const Dims given = mask.is_given() ? four_dims(mask.dims) : Dims{};
    const auto* const nonpad = static_cast<const int64_t*>(inputs[kNonpad].data);
    int64_t at = 0;
    for (int64_t b = 0; b < dims[0]; ++b) {
      const int64_t keys = nonpad ? nonpad[b] : dims[3],
                    offset = nonpad ? keys - dims[2] : shapes->past;
      for (int64_t h = 0; h < dims[1]; ++h) {
        for (int64_t i = 0; i < dims[2]; ++i) {
          for (int64_t j = 0; j < dims[3]; ++j, ++at) {
            const int64_t right = is_causal_ ? 0 : right_window_;
            const bool is_hidden = j >= keys || (right >= 0 && j > i + offset + right) ||
                                   (left_window_ >= 0 && j < i + offset - left_window_);
            double added = is_hidden ? -kInfinity : 0;
            if (mask.is_given()) added += value_of(mask, given, b, h, i, j);
            if (added == 0) continue;
            // Of a key without a token the score may be a NaN.
            const double masked =
                added == -kInfinity ? added : load(*scores.dtype, scores.data, at) + added;
            store(*scores.dtype, scores.data, at, masked);
          }
        }
      }
    }
  }

 private:
  static constexpr int64_t kMostWindow = 1 << 30;  ///< as good as all
  static constexpr double kInfinity = std::numeric_limits<double>::infinity();

  struct Shapes {
    Heads q, k, v;
    int64_t past = 0;
    int64_t total() const { return past + k.dims[2]; }
  };

  /// Whether rows see a window of keys, and there are more rows than keys: a graph says so with
  /// lengths alone.
  bool is_window_past_keys(const Shapes& s) const {
    return left_window_ >= 0 && s.q.dims[2] > s.total() && !is_window_in_score(s);
  }

  /// Whether rows have a past and are not as many as the new keys: their window then begins where
  /// no diagonal from a corner does.
  bool is_window_in_score(const Shapes& s) const {
    return left_window_ >= 0 && s.past > 0 && s.q.dims[2] != s.k.dims[2];
  }

  Status read(Attributes& attributes) {
    HEDDLE_ASSIGN(const int64_t causal, attributes.integer("is_causal", 0));
    is_causal_ = causal != 0;
    HEDDLE_ASSIGN(q_heads_, attributes.integer("q_num_heads", 0));
    HEDDLE_ASSIGN(kv_heads_, attributes.integer("kv_num_heads", 0));
    HEDDLE_ASSIGN(scale_, attributes.optional_number("scale"));
    HEDDLE_ASSIGN(softcap_, attributes.number("softcap", 0));
    HEDDLE_ASSIGN(left_window_, attributes.integer("left_window_size", -1));
    HEDDLE_ASSIGN(right_window_, attributes.integer("right_window_size", -1));
    HEDDLE_ASSIGN(mode_, attributes.integer("qk_matmul_output_mode", 0));
    HEDDLE_ASSIGN(const int64_t precision, attributes.integer("softmax_precision", 1));
    if (scale_ && !std::isfinite(*scale_))
      return error(Code::invalid_value, "scale must be finite. Got {}", *scale_);
    if (!(std::isfinite(softcap_) && softcap_ >= 0))
      return error(Code::invalid_value, "softcap must be finite and not negative. Got {}",
                   softcap_);
    for (const auto& [window, name] :
         {std::pair{&left_window_, "left_window_size"}, {&right_window_, "right_window_size"}}) {
      if (*window < -1)
        return error(Code::invalid_value, "{} must be -1 or not negative. Got {}", name, *window);
      *window = std::min(*window, kMostWindow);
    }
    if (mode_ < kRaw || mode_ > kWeights)
      return error(Code::invalid_value, "qk_matmul_output_mode must be from 0 to 3. Got {}", mode_);
    // Softmax is of f32, as in ONNX Runtime's own kernel.
    for (const ElementType type :
         {ElementType::f32, ElementType::f16, ElementType::bf16, ElementType::f64}) {
      if (precision == static_cast<int64_t>(type)) return {};
    }
    return error(
        Code::invalid_value,
        "softmax_precision must be that of f32 (1), f16 (10), f64 (11) or bf16 (16). Got {}",
        precision);
  }

  Result<Shapes> shapes_of(Inputs inputs) const {
    Shapes s;
    HEDDLE_ASSIGN(s.q, heads_of(inputs[kQ], "Q", q_heads_, "q_num_heads"));
    HEDDLE_ASSIGN(s.k, heads_of(inputs[kK], "K", kv_heads_, "kv_num_heads"));
    HEDDLE_ASSIGN(s.v, heads_of(inputs[kV], "V", kv_heads_, "kv_num_heads"));
    const Dims &q = s.q.dims, &k = s.k.dims, &v = s.v.dims;
    if (inputs[kQ].dims.rank() != inputs[kK].dims.rank() ||
        inputs[kQ].dims.rank() != inputs[kV].dims.rank())
      return error(Code::invalid_value,
                   "Q, K and V must have as many dimensions, got {}, {} and {}",
                   inputs[kQ].dims.rank(), inputs[kK].dims.rank(), inputs[kV].dims.rank());
    if (k[0] != q[0] || v[0] != q[0])
      return error(Code::invalid_value, "Q, K and V must have one batch size, got {}, {} and {}",
                   q[0], k[0], v[0]);
    if (k[1] != v[1] || q[1] % k[1] != 0)
      return error(Code::invalid_value,
                   "K and V must have as many heads, of which those of Q are a multiple. Got {} of "
                   "Q, {} of K, {} of V",
                   q[1], k[1], v[1]);
    if (q[3] != k[3])
      return error(Code::invalid_value, "Q and K must have one head size, got {} and {}", q[3],
                   k[3]);
    if (k[2] != v[2])
      return error(Code::invalid_value, "K and V must have one length, got {} and {}", k[2], v[2]);
    HEDDLE_TRY(check_past(inputs, s));
    if (inputs[kNonpad].is_given()) {
      if (inputs[kPastKey].is_given())
        return error(Code::invalid_value,
                     "nonpad_kv_seqlen and past_key are both given, expected at most one of them");
      if (!(inputs[kNonpad].dims == Dims{q[0]}))
        return error(Code::invalid_value, "nonpad_kv_seqlen has dims {}, expected [{}], the batch",
                     to_string(inputs[kNonpad].dims), q[0]);
    }
    HEDDLE_TRY(check_mask(inputs[kMask], s));
    return s;
  }

  static Status check_past(Inputs inputs, Shapes& s) {
    const Value &key = inputs[kPastKey], &value = inputs[kPastValue];
    if (key.is_given() != value.is_given())
      return error(Code::invalid_value, "past_key and past_value must be given together");
    if (!key.is_given()) return {};
    s.past = key.dims.rank() == 4 ? key.dims[2] : 0;
    for (const auto& [past, heads, name] :
         {std::tuple{&key, &s.k, "past_key"}, {&value, &s.v, "past_value"}}) {
      const Dims expected{heads->dims[0], heads->dims[1], s.past, heads->dims[3]};
      if (past->dims == expected) continue;
      return error(Code::invalid_value, "{} has dims {}, expected {}", name, to_string(past->dims),
                   to_string(expected));
    }
    return {};
  }

  static Status check_mask(const Value& mask, const Shapes& s) {
    if (!mask.is_given()) return {};
    switch (*mask.dtype) {
      case DataType::boolean:
      case DataType::f32:
      case DataType::f16:
      case DataType::bf16:
      case DataType::f64:
        break;
      default:
        return error(Code::graph_not_supported,
                     "attn_mask is of type {}, expected boolean or a floating type",
                     name(*mask.dtype));
    }
    const Dims scores{s.q.dims[0], s.q.dims[1], s.q.dims[2], s.total()};
    const Dims dims = four_dims(mask.dims);
    bool fits =
        mask.dims.rank() >= 1 && mask.dims.rank() <= 4 && dims[3] >= 1 && dims[3] <= scores[3];
    for (int n = 0; fits && n < 3; ++n) fits = dims[n] == 1 || dims[n] == scores[n];
    if (fits) return {};
    return error(Code::invalid_value,
                 "attn_mask has dims {}, expected what is broadcast to {}, or fewer keys",
                 to_string(mask.dims), to_string(scores));
  }

  /// The node's score expression: a soft cap, then keys hidden that the mask does not keep, or that
  /// lie less than `first` behind their row's index.
  static void score(GraphBuilder& graph, double softcap, int64_t mask = 0,
                    std::optional<int64_t> first = {}) {
    if (softcap == 0 && mask == 0 && !first) return;
    int64_t value = graph.made(nullptr);
    graph.tensor("score_mod.score_in", value);
    if (softcap != 0) {
      const int64_t limit = graph.constant(nullptr, softcap);
      value = graph.pointwise("div", {value, limit});
      value = graph.pointwise("tanh_fwd", {value});
      value = graph.pointwise("mul", {value, limit});
    }
    const auto keep = [&](int64_t kept) {
      value = graph.pointwise("binary_select", {kept, value, graph.constant(nullptr, -kInfinity)});
    };
    if (mask != 0) keep(mask);
    if (first) {
      constexpr int kRow = 2, kKey = 3;
      const int64_t behind = graph.pointwise(
          "sub", {graph.pointwise("gen_index", {}, kKey), graph.pointwise("gen_index", {}, kRow)});
      keep(graph.pointwise("cmp_ge",
                           {behind, graph.constant(nullptr, static_cast<double>(*first))}));
    }
    graph.tensor("score_mod.score_out", value);
  }

  /// Keys that a mask does not reach are hidden.
  static void pad(const Value& mask, int64_t keys, void* block) {
    const Dims dims = four_dims(mask.dims);
    const int64_t given = dims[3], rows = dims[0] * dims[1] * dims[2];
    const auto bytes = static_cast<size_t>(size_of(*mask.dtype));
    for (int64_t row = 0; row < rows; ++row) {
      std::memcpy(static_cast<char*>(block) + static_cast<size_t>(row * keys) * bytes,
                  static_cast<const char*>(mask.data) + static_cast<size_t>(row * given) * bytes,
                  static_cast<size_t>(given) * bytes);
      for (int64_t j = given; j < keys; ++j)
        store(*mask.dtype, block, row * keys + j,
              *mask.dtype == DataType::boolean ? 0 : -kInfinity);
    }
  }

  /// What a mask adds to a score.
  static double value_of(const Value& mask, const Dims& dims, int64_t b, int64_t h, int64_t i,
                         int64_t j) {
    if (j >= dims[3]) return -kInfinity;
    const auto in = [&](int n, int64_t index) { return dims[n] == 1 ? 0 : index; };
    const double x = load(*mask.dtype, mask.data,
                          ((in(0, b) * dims[1] + in(1, h)) * dims[2] + in(2, i)) * dims[3] + j);
    if (*mask.dtype == DataType::boolean) return x != 0 ? 0 : -kInfinity;
    return x;
  }

  bool is_causal_ = false;
  int64_t q_heads_ = 0, kv_heads_ = 0, mode_ = kRaw;
  int64_t left_window_ = -1, right_window_ = -1;  ///< keys beside a row's own position; -1: all
  std::optional<double> scale_;                   ///< nothing: 1 / sqrt(head size), and 0 is 0
  double softcap_ = 0;
};

/// Q's, with columns as V has them.
std::optional<SymbolicDims> shape(const ShapeContext& context) {
  std::optional<SymbolicDims> q = context.input(kQ);
  const std::optional<SymbolicDims> v = context.input(kV);
  if (!q || !v || q->size() != v->size()) return {};
  if (q->size() == 4) {
    q->back() = v->back();
    return q;
  }
  const int64_t heads = context.integer("q_num_heads", 0),
                kv_heads = context.integer("kv_num_heads", 0);
  if (heads < 1 || kv_heads < 1 || heads > INT32_MAX || v->back().number < 0) return {};
  const int64_t columns = v->back().number / kv_heads;
  if (columns > INT32_MAX) return {};
  q->back() = {heads * columns, ""};
  return q;
}

}  // namespace

const Operator kAttention{"Attention", 23, kInputs, kOutputs, kOverloads, Attention::make, shape};

}  // namespace heddle::onnxruntime
