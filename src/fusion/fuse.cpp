#include <algorithm>
#include <numeric>

#include "fusion/attention_problem.h"
#include "fusion/cache_append_problem.h"
#include "fusion/fp8_attention_problem.h"
#include "fusion/pointwise_problem.h"
#include "fusion/schedule.h"
#include "fusion/streaming_problem.h"
#include "graph/names.h"
#include "graph/ports.h"

namespace heddle::fusion {

using graph::Graph;
using graph::kNone;
using graph::Node;
using graph::TensorId;

namespace {

/// Who makes and who reads each tensor, by place in the graph's node order.
class Uses {
 public:
  explicit Uses(const Graph& graph) : maker_(graph.tensors.size(), -1), readers_(maker_.size()) {
    for (size_t n = 0; n < graph.nodes.size(); ++n) {
      for (const graph::Port& port : graph::ports(graph.nodes[n])) {
        if (port.output) {
          maker_[static_cast<size_t>(port.tensor)] = static_cast<int>(n);
        } else if (!port.inner || maker_[static_cast<size_t>(port.tensor)] != static_cast<int>(n)) {
          readers_[static_cast<size_t>(port.tensor)].push_back(static_cast<int>(n));
        }
      }
    }
  }

  /// The node that makes a tensor, or -1.
  int maker(TensorId id) const { return id == kNone ? -1 : maker_[static_cast<size_t>(id)]; }
  /// The nodes that read it in order, a node as often as it reads.
  const std::vector<int>& readers(TensorId id) const { return readers_[static_cast<size_t>(id)]; }

 private:
  std::vector<int> maker_;
  std::vector<std::vector<int>> readers_;
};

class Fusion {
 public:
  Fusion(const Graph& graph, const Graph& planned)
      : graph_(graph), planned_(planned), uses_(graph), runs_at_(graph.nodes.size()) {
    std::iota(runs_at_.begin(), runs_at_.end(), 0);
  }

  Result<Schedule> run() {
    std::vector<Step> attention(graph_.nodes.size());
    // Attention first: it says which rope nodes do not stand alone.
    for (size_t n = 0; n < graph_.nodes.size(); ++n) {
      const Node& node = graph_.nodes[n];
      const int place = static_cast<int>(n);
      if (std::holds_alternative<graph::Sdpa>(node.op)) attention[n] = forward(node, place);
      if (std::holds_alternative<graph::SdpaBackward>(node.op))
        attention[n] = backward(node, place);
      if (std::holds_alternative<graph::SdpaFp8>(node.op))
        attention[n] = fp8_attention_step(graph_, node);
      if (std::holds_alternative<graph::SdpaFp8Backward>(node.op))
        attention[n] = fp8_attention_backward_step(graph_, node);
    }
    const PointwiseFusion pointwise(graph_, planned_);
    Schedule schedule;
    for (size_t n = 0; n < graph_.nodes.size(); ++n) {
      const Node& node = graph_.nodes[n];
      if (is_part(n)) continue;
      if (std::holds_alternative<graph::Rope>(node.op)) {
        schedule.steps.push_back(rope_step(graph_, node));
      } else if (std::optional<Step> norm = norm_step(graph_, node)) {
        schedule.steps.push_back(std::move(*norm));
      } else if (std::holds_alternative<graph::CacheAppend>(node.op)) {
        schedule.steps.push_back(cache_append_step(graph_, node));
      } else if (std::holds_alternative<graph::PointwiseNode>(node.op)) {
        const auto place = static_cast<int>(n);
        if (pointwise.makes_memory(place))
          schedule.steps.push_back(pointwise.step(pointwise.together_with(place, runs_at_)));
      } else {
        schedule.steps.push_back(std::move(attention[n]));
      }
    }
    schedule.intermediates = intermediates(schedule);
    HEDDLE_TRY(check_extents(schedule.intermediates));
    return schedule;
  }

 private:
  Step forward(const Node& node, int place) {
    const auto& op = std::get<graph::Sdpa>(node.op);
    ForwardParts parts{&node, {}, {}};
    parts.q_rope = rope_before(op.q, place);
    const bool rows_are_keys = op.page_table_k == kNone && !op.ring_kv && !op.max_seq_len_kv;
    if (rows_are_keys) parts.k_rope = rope_before(op.k, place);
    return attention_step(graph_, parts);
  }

  Step backward(const Node& node, int place) {
    const auto& op = std::get<graph::SdpaBackward>(node.op);
    BackwardParts parts{&node, {}, {}, {}, {}};
    parts.q_rope = rope_before(op.q, place);
    parts.k_rope = rope_before(op.k, place);
    parts.d_q_rope = rope_after(op.d_q, place);
    parts.d_k_rope = rope_after(op.d_k, place);
    return attention_backward_step(graph_, parts);
  }

  /// Whether the node is part of another's step.
  bool is_part(size_t n) const { return runs_at_[n] != static_cast<int>(n); }

  bool is_ragged(TensorId id) const { return graph_[id].ragged_offset != kNone; }

  /// The rope that makes `id`, if the attention at `place` may rotate in its stead: it is the first
  /// to read the rotated tensor and reads it once, and rotating changes no dtype (the rotated value
  /// is rounded to what the tensor holds).
  std::optional<AbsorbedRope> rope_before(TensorId id, int place) {
    const int maker = uses_.maker(id);
    if (maker < 0 || is_part(static_cast<size_t>(maker))) return {};
    const Node& node = graph_.nodes[static_cast<size_t>(maker)];
    const auto* rope = std::get_if<graph::Rope>(&node.op);
    if (!rope || rope->backward || graph_[rope->x].dtype != graph_[id].dtype) return {};
    const std::vector<int>& readers = uses_.readers(id);
    if (std::count(readers.begin(), readers.end(), place) != 1 || readers.front() != place) {
      return {};
    }
    const bool is_read = !graph_[id].is_virtual || readers.size() > 1;
    // A ragged rope rotates all up to the next sequence, an attention only up to the length.
    if (is_ragged(rope->x) != is_ragged(id) || (is_ragged(id) && is_read)) return {};
    runs_at_[static_cast<size_t>(maker)] = place;
    return AbsorbedRope{&node, is_read};
  }

  /// The rope_backward that takes the gradient `id` made at `place` further, if it is the first to
  /// read it and its own inputs exist by then.
  std::optional<AbsorbedRope> rope_after(TensorId id, int place) {
    if (id == kNone || uses_.readers(id).empty()) return {};
    const int reader = uses_.readers(id).front();
    const Node& node = graph_.nodes[static_cast<size_t>(reader)];
    const auto* rope = std::get_if<graph::Rope>(&node.op);
    if (!rope || !rope->backward || rope->x != id) return {};
    for (TensorId table : {rope->freqs, rope->cosines, rope->sines, rope->positions}) {
      if (uses_.maker(table) >= place) return {};
    }
    if (is_ragged(id) != is_ragged(rope->y)) return {};
    runs_at_[static_cast<size_t>(reader)] = place;
    return AbsorbedRope{&node, !graph_[id].is_virtual || uses_.readers(id).size() > 1};
  }

  /// Virtual tensors that steps name.
  std::vector<TensorId> intermediates(const Schedule& schedule) const {
    std::vector<TensorId> ids;
    for (const Step& step : schedule.steps) {
      for (TensorId id : step.tensors) {
        if (graph_[id].is_virtual && !graph_[id].constant) ids.push_back(id);
      }
    }
    std::sort(ids.begin(), ids.end());
    ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
    return ids;
  }

  /// An intermediate's memory is measured before anything is executed.
  Status check_extents(const std::vector<TensorId>& intermediates) const {
    const auto ragged = std::find_if(intermediates.begin(), intermediates.end(),
                                     [&](TensorId id) { return is_ragged(id); });
    if (ragged == intermediates.end()) return {};
    return error(Code::graph_not_supported,
                 "The {} is ragged and virtual, and more than one op's own: where it ends is data, "
                 "expected a tensor that is bound",
                 graph::describe(graph_[*ragged]));
  }

  const Graph &graph_, &planned_;
  Uses uses_;
  /// The place of the step that each node is part of.
  std::vector<int> runs_at_;
};

}  // namespace

Result<Schedule> fuse(const Graph& graph) { return Fusion(graph, graph).run(); }
Result<Schedule> fuse(const Graph& graph, const Graph& planned) {
  return Fusion(graph, planned).run();
}

}  // namespace heddle::fusion
