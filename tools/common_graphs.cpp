#include "tools/common_graphs.h"

#include <fmt/format.h>

#include <cmath>
#include <utility>

#include "graph/validate.h"

namespace heddle::tools {
namespace {

using graph::Graph;
using graph::kNone;
using graph::TensorId;

constexpr DataType kBf16 = DataType::bf16, kF16 = DataType::f16, kF32 = DataType::f32;
constexpr int64_t kBatch = 2, kHeads = 8, kFewHeads = 2;

struct AttentionCase {
  DataType dtype = kBf16;
  int64_t dim = 64, queries = 0, keys = 0;
  bool causal = false;
  bool shares_keys = false;  ///< by several heads: grouped queries
  bool lengths = false;      ///< each sequence has its own
  bool rotates = false;      ///< queries and keys
  int64_t value_dim = 0;     ///< 0: as dim
  bool drops = false;        ///< weights, as training does

  std::string words() const {
    return fmt::format("{} d {}{}{}{}{}{}{}, {} x {}", name(dtype), dim,
                       value_dim != 0 ? fmt::format("/{}", value_dim) : "", causal ? " causal" : "",
                       shares_keys ? " grouped" : "", lengths ? " lengths" : "",
                       rotates ? " rope" : "", drops ? " dropout" : "", queries, keys);
  }
};

class Builder {
 public:
  explicit Builder(std::string name) { graph_.name = std::move(name); }

  TensorId tensor(std::string name, DataType dtype, Dims dims) {
    return graph_.add(
        {.name = std::move(name), .dtype = dtype, .dims = dims, .strides = *dense_strides(dims)});
  }
  TensorId constant(std::string name, double value) {
    return graph_.add({.name = std::move(name), .dtype = kF32, .constant = value});
  }
  const Dims& dims(TensorId tensor) const { return graph_[tensor].dims; }
  /// What no caller binds.
  TensorId made(std::string name, DataType dtype) {
    return graph_.add({.name = std::move(name), .dtype = dtype, .is_virtual = true});
  }
  template <class Op>
  void node(std::string name, Op op) {
    graph_.nodes.push_back({std::move(name), std::move(op)});
  }
  Result<CommonGraph> finished(std::string name) {
    graph_.intermediate_dtype = graph_.compute_dtype = kF32;
    HEDDLE_TRY(graph::validate(graph_));
    return CommonGraph{std::move(name), std::move(graph_)};
  }

 private:
  Graph graph_;
};

/// What the forward and its backward read alike.
class AttentionBuilder : public Builder {
 public:
  AttentionBuilder(const char* name, const AttentionCase& c) : Builder(name), c_(c) {}

  TensorId queries(const char* name) { return heads(name, kHeads, c_.queries, c_.dim); }
  TensorId keys(const char* name) { return heads(name, key_heads(), c_.keys, c_.dim); }
  TensorId values(const char* name) { return heads(name, key_heads(), c_.keys, value_dim()); }
  /// O and its gradient.
  TensorId results(const char* name) { return heads(name, kHeads, c_.queries, value_dim()); }
  TensorId statistics(const char* name) {
    return tensor(name, kF32, {kBatch, kHeads, c_.queries, 1});
  }
  /// x, rotated where the case says so.
  TensorId rotated(TensorId x, int64_t rows) {
    if (!c_.rotates) return x;
    const auto table = [&](const char* of) {
      return tensor(fmt::format("{} {}", of, x), kF32, {rows, 1, 1, c_.dim / 2});
    };
    const TensorId y = made(fmt::format("rotated {}", x), c_.dtype);
    node(fmt::format("rope {}", x),
         graph::Rope{.x = x, .y = y, .cosines = table("cosines"), .sines = table("sines")});
    return y;
  }
  graph::AttentionAttributes attributes() {
    graph::AttentionAttributes said{.attn_scale = 1 / std::sqrt(static_cast<double>(c_.dim))};
    if (c_.causal) said.right_bound = 0;
    if (c_.lengths) {
      said.padding_mask = true;
      said.seq_len_q = tensor("q_lengths", DataType::i32, {kBatch, 1, 1, 1});
      said.seq_len_kv = tensor("kv_lengths", DataType::i32, {kBatch, 1, 1, 1});
    }
    if (c_.drops) {
      said.dropout.probability = 0.1;
      said.dropout.seed = tensor("seed", DataType::i64, {1, 1, 1, 1});
      said.dropout.offset = tensor("offset", DataType::i64, {1, 1, 1, 1});
    }
    return said;
  }

 private:
  TensorId heads(const char* name, int64_t heads, int64_t rows, int64_t columns) {
    return tensor(name, c_.dtype, {kBatch, heads, rows, columns});
  }
  int64_t key_heads() const { return c_.shares_keys ? kFewHeads : kHeads; }
  int64_t value_dim() const { return c_.value_dim != 0 ? c_.value_dim : c_.dim; }

  const AttentionCase c_;
};

/// A kernel that writes statistics is also that of who asks for none.
Result<CommonGraph> forward(const AttentionCase& c) {
  AttentionBuilder build("attention", c);
  graph::Sdpa op;
  op.q = build.rotated(build.queries("q"), c.queries);
  op.k = build.rotated(build.keys("k"), c.keys);
  op.v = build.values("v"), op.o = build.results("o");
  op.stats = build.statistics("stats");
  op.attention = build.attributes();
  build.node("attention", op);
  return build.finished("sdpa " + c.words());
}

Result<CommonGraph> backward(const AttentionCase& c) {
  AttentionBuilder build("attention backward", c);
  graph::SdpaBackward op{.whole_rows = true};
  op.q = build.queries("q"), op.k = build.keys("k"), op.v = build.values("v");
  op.o = build.results("o"), op.d_o = build.results("d_o"), op.stats = build.statistics("stats");
  op.d_q = build.queries("d_q"), op.d_k = build.keys("d_k"), op.d_v = build.values("d_v");
  op.attention = build.attributes();
  build.node("attention_backward", op);
  return build.finished("sdpa_backward " + c.words());
}

/// A step of a generation as GroupQueryAttention has it: a token's packed Q, K and V, rotated and
/// put into caches, and its attention to them.
Result<CommonGraph> step(const AttentionCase& c, DataType table) {
  AttentionBuilder build("step", c);
  const auto made = [&](const char* name, DataType dtype) { return build.made(name, dtype); };
  graph::CacheAppend append;
  const TensorId past = build.keys("past_k");
  const int64_t key_heads = build.dims(past)[1];
  append.q = build.tensor("qkv", c.dtype, {kBatch, kHeads + 2 * key_heads, c.queries, c.dim});
  append.past_k = past, append.past_v = build.values("past_v");
  append.present_k = build.keys("present_k"), append.present_v = build.values("present_v");
  append.seq_len_kv = build.tensor("lengths", DataType::i32, {kBatch, 1, 1, 1});
  append.seq_len_kv_offset = 1;
  append.cosines = build.tensor("cosines", table, {c.keys, 1, 1, c.dim / 2});
  append.sines = build.tensor("sines", table, {c.keys, 1, 1, c.dim / 2});
  append.q_out = made("q", c.dtype);
  append.lengths_q = made("lengths_q", DataType::i32);
  append.lengths_kv = made("lengths_kv", DataType::i32);
  build.node("append", append);
  graph::Sdpa attention;
  attention.q = append.q_out, attention.k = append.present_k, attention.v = append.present_v;
  attention.o = build.results("o");
  attention.attention = {.attn_scale = 1 / std::sqrt(static_cast<double>(c.dim)),
                         .padding_mask = true,
                         .seq_len_q = append.lengths_q,
                         .seq_len_kv = append.lengths_kv,
                         .diagonal_alignment = graph::DiagonalAlignment::bottom_right,
                         .right_bound = 0};
  build.node("attention", attention);
  return build.finished(fmt::format("step {}, {} tables", c.words(), name(table)));
}

struct NormCase {
  DataType dtype;
  bool centers = false;  ///< LayerNorm, with a bias
  int64_t columns;

  std::string words() const {
    return fmt::format("{}_norm{{}} {} of {} columns", centers ? "layer" : "rms", name(dtype),
                       columns);
  }
};

constexpr int64_t kRows = 4096;

template <class Op>
void read_rows(Builder& build, const NormCase& c, Op& op) {
  op.x = build.tensor("x", c.dtype, {kRows, c.columns});
  op.scale = build.tensor("weight", c.dtype, {1, c.columns});
}

Result<CommonGraph> norm(const NormCase& c) {
  Builder build("norm");
  const auto add = [&](auto op) {
    read_rows(build, c, op);
    if (c.centers) op.bias = build.tensor("bias", c.dtype, {1, c.columns});
    op.epsilon = build.constant("epsilon", 1e-5);
    op.y = build.tensor("y", c.dtype, {kRows, c.columns});
    if constexpr (requires { op.mean; }) {
      op.mean = build.tensor("mean", kF32, {kRows, 1});
    }
    op.inv_variance = build.tensor("inv_variance", kF32, {kRows, 1});
    build.node("norm", op);
  };
  if (c.centers)
    add(graph::LayerNorm{});
  else
    add(graph::RmsNorm{});
  return build.finished(fmt::format(fmt::runtime(c.words()), ""));
}

Result<CommonGraph> norm_backward(const NormCase& c) {
  Builder build("norm backward");
  const auto add = [&](auto op) {
    op.dy = build.tensor("dy", c.dtype, {kRows, c.columns});
    read_rows(build, c, op);
    if constexpr (requires { op.mean; }) {
      op.mean = build.tensor("mean", kF32, {kRows, 1});
      op.d_bias = build.tensor("d_bias", c.dtype, {1, c.columns});
    }
    op.inv_variance = build.tensor("inv_variance", kF32, {kRows, 1});
    op.dx = build.tensor("dx", c.dtype, {kRows, c.columns});
    op.d_scale = build.tensor("d_weight", c.dtype, {1, c.columns});
    build.node("norm_backward", op);
  };
  if (c.centers)
    add(graph::LayerNormBackward{});
  else
    add(graph::RmsNormBackward{});
  return build.finished(fmt::format(fmt::runtime(c.words()), "_backward"));
}

}  // namespace

Result<std::vector<CommonGraph>> common_graphs() {
  std::vector<CommonGraph> all;
  Status failed;
  const auto add = [&](Result<CommonGraph> made) {
    if (made)
      all.push_back(std::move(*made));
    else if (failed.is_ok())
      failed = made.status();
  };
  const auto add_attention = [&](const AttentionCase& c) {
    add(forward(c));
    add(backward(c));
  };
  // Lengths of the classes in which tiles change.
  const auto add_all_lengths = [&](AttentionCase c) {
    for (int64_t length : {512, 2048, 16384}) {
      c.queries = c.keys = length;
      for (bool shares_keys : {false, true}) {
        c.shares_keys = shares_keys;
        add_attention(c);
      }
    }
  };
  const auto add_steps = [&](AttentionCase c) {
    c.queries = 1, c.keys = 8192;
    for (bool shares_keys : {false, true}) {
      for (bool lengths : {false, true}) {
        c.shares_keys = shares_keys, c.lengths = lengths;
        add(forward(c));
      }
    }
  };
  for (bool causal : {false, true}) {
    for (int64_t dim : {64, 128}) {
      for (DataType dtype : {kBf16, kF16}) add_all_lengths({dtype, dim, 0, 0, causal});
      add_attention({.dim = dim, .queries = 2048, .keys = 2048, .causal = causal, .lengths = true});
    }
    add_all_lengths({kBf16, 256, 0, 0, causal});
    for (int64_t dim : {64, 128, 256}) add_attention({kF32, dim, 2048, 2048, causal});
    for (int64_t dim : {64, 128}) {
      AttentionCase c{kBf16, dim, 0, 0, causal};
      c.drops = true;
      add_all_lengths(c);
    }
  }
  // Latent attention (MLA), as models with it train.
  for (int64_t length : {512, 2048, 16384})
    add_attention(
        {.dim = 192, .queries = length, .keys = length, .causal = true, .value_dim = 128});
  for (int64_t dim : {64, 128}) {
    add(forward({.dim = dim, .queries = 2048, .keys = 2048, .causal = true, .rotates = true}));
    for (DataType dtype : {kBf16, kF16}) {
      add_steps({dtype, dim});
      for (bool shares_keys : {false, true})
        for (DataType table : {dtype, kF32})
          add(step({dtype, dim, 1, 8192, false, shares_keys}, table));
    }
  }
  // Rows of up to so many columns.
  for (int64_t columns : {1024, 2048, 4096, 8192}) {
    for (bool centers : {false, true}) {
      const NormCase c{kBf16, centers, columns};
      add(norm(c));
      add(norm_backward(c));
    }
  }
  if (!failed.is_ok()) return failed;
  return all;
}

}  // namespace heddle::tools
