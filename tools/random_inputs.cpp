// fill_random of graph_memory.h.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <set>
#include <string_view>

#include "graph/extents.h"
#include "graph/ports.h"
#include "graph/validate.h"
#include "graph/without_scales.h"
#include "reference/evaluate.h"
#include "tools/graph_memory.h"

namespace heddle::tools {
namespace {

using graph::AttentionExtents;
using graph::Graph;
using graph::kNone;
using graph::Node;
using graph::Tensor;
using graph::TensorId;

constexpr double kKeepProbability = 0.9;
constexpr double kEpsilon = 1e-5;

class Filler {
 public:
  Filler(const Graph& graph, GraphMemory& memory, uint64_t seed)
      : graph_(graph), memory_(memory), generator_(seed) {
    for (const TensorId id : graph::bound_inputs(graph)) open_.insert(id);
  }

  Status fill() {
    for (const Node& node : graph_.nodes) {
      if (const auto* op = std::get_if<graph::Sdpa>(&node.op)) attention(*op);
      if (const auto* op = std::get_if<graph::SdpaBackward>(&node.op)) attention(*op);
      if (const auto* op = std::get_if<graph::SdpaFp8>(&node.op))
        attention(graph::without_scales(*op));
      if (const auto* op = std::get_if<graph::SdpaFp8Backward>(&node.op))
        attention(graph::without_scales(*op));
      if (const auto* op = std::get_if<graph::CacheAppend>(&node.op)) append(*op);
    }
    for (const Node& node : graph_.nodes)
      for (const graph::Port& port : graph::ports(node))
        if (!port.output && !is_forward_result(node, port.name))
          by_role(port.name, port.tensor, node);
    for (const Node& node : graph_.nodes) {
      if (const auto* op = std::get_if<graph::SdpaBackward>(&node.op)) HEDDLE_TRY(forward_of(*op));
      if (const auto* op = std::get_if<graph::RmsNormBackward>(&node.op))
        HEDDLE_TRY(forward_of(*op));
      if (const auto* op = std::get_if<graph::LayerNormBackward>(&node.op))
        HEDDLE_TRY(forward_of<graph::LayerNorm>(*op));
      if (const auto* op = std::get_if<graph::InstanceNormBackward>(&node.op))
        HEDDLE_TRY(forward_of<graph::InstanceNorm>(*op));
      if (const auto* op = std::get_if<graph::BatchNormBackward>(&node.op))
        HEDDLE_TRY(forward_of<graph::BatchNorm>(*op));
    }
    const std::set<TensorId> rest = open_;
    for (const TensorId id : rest) normal(id);
    return Status();
  }

 private:
  /// Whether `id` is a bound input that nothing has filled; it counts as filled from here on.
  bool claim(TensorId id) { return id != kNone && open_.erase(id) > 0; }

  double uniform(double low, double high) {
    return std::uniform_real_distribution<double>(low, high)(generator_);
  }
  int64_t integer(int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, std::max(low, high))(generator_);
  }

  /// Every byte of a tensor's memory through `value(index)`, gaps between strides too.
  template <class Value>
  void all(TensorId id, Value value) {
    if (!claim(id)) return;
    const Tensor& tensor = graph_[id];
    void* data = memory_.data(tensor.uid);
    const int64_t count = memory_.bytes(tensor.uid) / size_of(*tensor.dtype);
    for (int64_t i = 0; i < count; ++i) {
      if (is_floating(*tensor.dtype)) {
        store(*tensor.dtype, data, i, static_cast<double>(value(i)));
      } else {
        const auto bits = static_cast<int64_t>(value(i));
        std::memcpy(static_cast<std::byte*>(data) + i * size_of(*tensor.dtype), &bits,
                    static_cast<size_t>(size_of(*tensor.dtype)));
      }
    }
  }

  void normal(TensorId id) {
    std::normal_distribution<double> distribution;
    if (is_floating(*graph_[id].dtype)) {
      all(id, [&](int64_t) { return distribution(generator_); });
    } else {
      all(id, [&](int64_t) { return integer(0, 1); });
    }
  }

  /// Lengths, their prefix sums, and the offsets of packed tensors: they must agree.
  template <class Op>
  void attention(const Op& op) {
    const AttentionExtents extents = graph::extents(graph_, op);
    const graph::AttentionAttributes& a = op.attention;
    const auto side = [&](TensorId plain, TensorId cumulative, int64_t extent,
                          std::initializer_list<TensorId> packed) {
      std::vector<int64_t> lengths(static_cast<size_t>(extents.batch), extent);
      if (plain != kNone || cumulative != kNone)
        for (int64_t& length : lengths) length = integer(std::min<int64_t>(1, extent), extent);
      std::vector<int64_t> ends(1, 0);
      for (const int64_t length : lengths) ends.push_back(ends.back() + length);
      const auto at = [](const std::vector<int64_t>& list, int64_t i) {
        return list[std::min(static_cast<size_t>(i), list.size() - 1)];
      };
      all(plain, [&](int64_t b) { return at(lengths, b); });
      all(cumulative, [&](int64_t b) { return at(ends, b); });
      for (const TensorId id : packed) {
        if (id == kNone || graph_[id].ragged_offset == kNone) continue;
        const int64_t row = graph_[id].strides[2];
        all(graph_[id].ragged_offset,
            [&](int64_t b) { return at(ends, b) * row / graph_[id].ragged_offset_multiplier; });
      }
    };
    if constexpr (std::is_same_v<Op, graph::Sdpa>) {
      side(a.seq_len_q, a.cu_seq_len_q, extents.q_length,
           {op.q, op.o, op.stats, op.max, op.sum_exp});
      side(a.seq_len_kv, a.cu_seq_len_kv, extents.kv_length, {op.k, op.v});
      for (const TensorId table : {op.page_table_k, op.page_table_v})
        all(table, [&, next = int64_t{0}](int64_t) mutable { return next++; });
    } else {
      side(a.seq_len_q, a.cu_seq_len_q, extents.q_length,
           {op.q, op.o, op.d_o, op.stats, op.max, op.sum_exp, op.d_q});
      side(a.seq_len_kv, a.cu_seq_len_kv, extents.kv_length, {op.k, op.v, op.d_k, op.d_v});
    }
    all(a.attn_scale_tensor, [&](int64_t) {
      return 1 / std::sqrt(static_cast<double>(std::max<int64_t>(extents.qk_head_dim, 1)));
    });
    all(a.block_mask, [&](int64_t) { return integer(0, 255); });
    all(a.dropout.seed, [&](int64_t) { return integer(0, INT32_MAX); });
    all(a.dropout.offset, [&](int64_t) { return integer(0, INT32_MAX); });
    all(a.dropout.streams, [&](int64_t) { return integer(0, INT32_MAX); });
    all(a.dropout.mask, [&](int64_t) { return uniform(0, 1) < kKeepProbability ? 1 : 0; });
    all(a.dropout.scale, [&](int64_t) { return 1 / kKeepProbability; });
    all(a.dropout.scale_inv, [&](int64_t) { return kKeepProbability; });
  }

  /// Lengths that caches have room for, each page a block of its own, codes of every value.
  void append(const graph::CacheAppend& op) {
    const int64_t rows = graph_[op.q].dims[2];
    int64_t room = rows;
    if (op.past_k != kNone) room = graph_[op.past_k].dims[2];
    if (op.page_table_k != kNone) room *= graph_[op.page_table_k].dims[2];
    all(op.seq_len_q, [&](int64_t) { return integer(std::min<int64_t>(1, rows), rows); });
    all(op.seq_len_kv,
        [&](int64_t) { return integer(std::min(rows, room), room) - op.seq_len_kv_offset; });
    for (const TensorId table : {op.page_table_k, op.page_table_v})
      all(table, [&, next = int64_t{0}](int64_t) mutable { return next++; });
    for (const TensorId cache : {op.past_k, op.past_v}) {
      if (cache != kNone && !is_floating(*graph_[cache].dtype))
        all(cache, [&](int64_t) { return integer(0, 255); });
    }
    if (op.positions != kNone) {
      const int64_t last = graph_[op.cosines].dims[0] - 1;
      all(op.positions, [&](int64_t) { return integer(0, last); });
    }
  }

  /// What a backward op is given that its forward has made.
  static bool is_forward_result(const Node& node, std::string_view port) {
    if (std::holds_alternative<graph::SdpaBackward>(node.op))
      return port == "o" || port == "stats" || port == "max" || port == "sum_exp";
    if (std::holds_alternative<graph::RmsNormBackward>(node.op)) return port == "inv_variance";
    if (std::holds_alternative<graph::LayerNormBackward>(node.op) ||
        std::holds_alternative<graph::InstanceNormBackward>(node.op) ||
        std::holds_alternative<graph::BatchNormBackward>(node.op))
      return port == "mean" || port == "inv_variance";
    return false;
  }

  void by_role(std::string_view role, TensorId id, const Node& node) {
    if (id == kNone) return;
    if (role == "freqs") return all(id, [&](int64_t) { return uniform(-M_PI, M_PI); });
    if (role == "cosines" || role == "sines")
      return all(id, [&](int64_t) { return uniform(-1, 1); });
    if (role == "k_scale" || role == "v_scale")
      return all(id, [&](int64_t) { return uniform(0.01, 0.03); });
    if (role.starts_with("descale_") || role.starts_with("scale_"))
      return all(id, [&](int64_t) { return uniform(0.5, 2); });
    if (role == "epsilon") return all(id, [](int64_t) { return kEpsilon; });
    if (role == "momentum" || role == "running_var")
      return all(id, [&](int64_t) { return uniform(0, 1); });
    if (const auto* op = std::get_if<graph::Rope>(&node.op); op && role == "positions") {
      const graph::Rope& rope = *op;
      const int64_t rows = graph_[rope.x].dims[2];
      const int64_t known = graph_[rope.freqs != kNone ? rope.freqs : rope.cosines].dims[0];
      const bool per_row = graph_[id].dims.rank() > 2 && graph_[id].dims[2] == rows && rows > 1;
      const int64_t last = std::max<int64_t>(known - rows, 0);
      return all(id, [&](int64_t i) { return per_row ? i % rows : integer(0, last); });
    }
    if (open_.contains(id)) normal(id);
  }

  Status forward_of(const graph::SdpaBackward& op) {
    const auto results = {op.o, op.stats, op.max, op.sum_exp};
    if (std::none_of(results.begin(), results.end(),
                     [&](TensorId id) { return open_.contains(id); }))
      return Status();
    Graph forward = graph_;
    graph::Sdpa sdpa;
    sdpa.q = op.q, sdpa.k = op.k, sdpa.v = op.v, sdpa.o = op.o;
    sdpa.stats = op.stats, sdpa.max = op.max, sdpa.sum_exp = op.sum_exp;
    sdpa.attention = op.attention;
    return by_reference(std::move(forward), sdpa, results);
  }

  Status forward_of(const graph::RmsNormBackward& op) {
    graph::RmsNorm norm;
    norm.inv_variance = op.inv_variance;
    return forward_of(op, norm, {op.inv_variance});
  }
  template <class Norm, class Backward>
  Status forward_of(const Backward& op) {
    Norm norm;
    norm.mean = op.mean, norm.inv_variance = op.inv_variance;
    return forward_of(op, norm, {op.mean, op.inv_variance});
  }
  /// `norm` has the statistics; what else it takes is that of its backward.
  template <class Norm, class Backward>
  Status forward_of(const Backward& op, Norm norm, std::initializer_list<TensorId> statistics) {
    if (std::none_of(statistics.begin(), statistics.end(),
                     [&](TensorId id) { return open_.contains(id); }))
      return Status();
    Graph forward = graph_;
    norm.x = op.x, norm.scale = op.scale;
    Tensor epsilon, y = graph_[op.x];
    epsilon.dtype = DataType::f32, epsilon.dims = {1, 1, 1, 1}, epsilon.strides = {1, 1, 1, 1};
    epsilon.constant = kEpsilon;
    y.is_virtual = true, y.uid = 0, y.name.clear();
    norm.epsilon = forward.add(epsilon), norm.y = forward.add(y);
    return by_reference(std::move(forward), norm, statistics);
  }

  /// Runs one op of the reference, in place of the graph's nodes that need its results, behind
  /// those of the graph that make its inputs.
  template <class Op>
  Status by_reference(Graph forward, const Op& op, std::initializer_list<TensorId> results) {
    std::vector<Node> nodes;
    for (const Node& node : graph_.nodes)
      if (const auto* rope = std::get_if<graph::Rope>(&node.op); rope != nullptr && !rope->backward)
        nodes.push_back(node);
    nodes.push_back({"forward", op});
    forward.nodes = std::move(nodes);
    HEDDLE_TRY(graph::validate(forward));
    const reference::Buffers buffers = memory_.addresses();
    HEDDLE_ASSIGN(const reference::Values values, reference::evaluate(forward, buffers));
    reference::Buffers wanted;
    for (const TensorId id : results)
      if (claim(id)) wanted[graph_[id].uid] = memory_.data(graph_[id].uid);
    reference::store_results(values, wanted);
    return Status();
  }

  const Graph& graph_;
  GraphMemory& memory_;
  std::mt19937_64 generator_;
  std::set<TensorId> open_;  // bound inputs nothing has filled yet
};

}  // namespace

Status fill_random(const Graph& graph, GraphMemory& memory, uint64_t seed) {
  return Filler(graph, memory, seed).fill();
}

}  // namespace heddle::tools
