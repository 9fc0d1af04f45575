#include "fusion/scale_folding.h"

#include <cmath>
#include <map>

#include "graph/ports.h"

namespace heddle::fusion {

using graph::AttentionAttributes;
using graph::Graph;
using graph::kNone;
using graph::Node;
using graph::TensorId;

namespace {

class ScaleFold {
 public:
  ScaleFold(Graph& graph, const ScaleFolding& folding) : graph_(graph), folding_(folding) {}

  Status run() {
    for (Node& node : graph_.nodes) {
      if (auto* op = std::get_if<graph::Sdpa>(&node.op)) {
        if (op->attn_scale_prefolded) return refuse(node, "Q carries the scale already");
        HEDDLE_TRY(fold(node, op->attention, op->q, op->k, kNone, kNone, false));
      } else if (auto* back = std::get_if<graph::SdpaBackward>(&node.op)) {
        HEDDLE_TRY(fold(node, back->attention, back->q, back->k, back->d_q, back->d_k, true));
      }
    }
    for (const auto& [n, factor] : factors_) {
      std::get<graph::Rope>(graph_.nodes[n].op).output_scale *= factor;
    }
    return {};
  }

 private:
  Status refuse(const Node& node, std::string_view why) const {
    return error(Code::graph_not_supported, "The scale of '{}' cannot be folded into rope: {}.",
                 node.name, why);
  }

  Status fold(const Node& node, AttentionAttributes& a, TensorId q, TensorId k, TensorId d_q,
              TensorId d_k, bool is_backward) {
    const bool symmetric = folding_.side == ScaleFolding::Side::symmetric;
    const double scale = a.attn_scale.value_or(1);
    if (a.attn_scale_tensor != kNone) return refuse(node, "it is a tensor, expected a number");
    if (a.softmax_input_is_log2) return refuse(node, "its scores are in log2 units already");
    if (symmetric && scale < 0) {
      return refuse(node, fmt::format("it is {}, and a negative number has no square root to give "
                                      "to Q and K each",
                                      scale));
    }
    if (folding_.log2 && a.score_mod) {
      return refuse(node, "its score_mod is written for natural scores, expected none with log2");
    }
    const double unit = folding_.log2 ? 1 / std::log(2) : 1;
    const double q_factor = (symmetric ? std::sqrt(scale) : scale) * unit;
    HEDDLE_TRY(fold_side(node, "Q", q, d_q, q_factor, is_backward));
    if (symmetric) HEDDLE_TRY(fold_side(node, "K", k, d_k, std::sqrt(scale), is_backward));
    a.attn_scale = 1;
    a.softmax_input_is_log2 = folding_.log2;
    return {};
  }

  /// The ropes that make `x` and take its gradient `d_x` further. A backward may be given x as the
  /// forward saved it; then the rope_backward alone tells that it is rotated.
  Status fold_side(const Node& node, std::string_view side, TensorId x, TensorId d_x, double factor,
                   bool is_backward) {
    bool has_rope = false, is_made = false;
    for (size_t n = 0; n < graph_.nodes.size(); ++n) {
      const auto* rope = std::get_if<graph::Rope>(&graph_.nodes[n].op);
      is_made |= makes(graph_.nodes[n], x);
      if (!rope) continue;
      const bool before = !rope->backward && rope->y == x;
      const bool after = rope->backward && rope->x == d_x;
      if (!before && !after) continue;
      has_rope = true;
      HEDDLE_TRY(set_factor(node, n, factor));
    }
    if (!has_rope || (is_made && !is_rotated(x))) {
      return refuse(node, fmt::format("its {} comes from no rope", side));
    }
    HEDDLE_TRY(expect_readers(node, side, x));
    if (!is_backward || d_x == kNone) return {};
    if (!is_turned_back(d_x)) {
      return refuse(node, fmt::format("no rope_backward takes its d{} further", side));
    }
    if (!graph_[d_x].is_virtual) {
      return refuse(node, fmt::format("its d{} before rotation is an output, whose value would "
                                      "change",
                                      side));
    }
    return {};
  }

  static bool makes(const Node& node, TensorId id) {
    for (const graph::Port& port : graph::ports(node)) {
      if (port.output && port.tensor == id) return true;
    }
    return false;
  }

  bool is_rotated(TensorId x) const {
    for (const Node& node : graph_.nodes) {
      const auto* rope = std::get_if<graph::Rope>(&node.op);
      if (rope && !rope->backward && rope->y == x) return true;
    }
    return false;
  }

  /// Whether rope_backwards, and nothing else, read a gradient.
  bool is_turned_back(TensorId d_x) const {
    bool found = false;
    for (const Node& node : graph_.nodes) {
      const auto* rope = std::get_if<graph::Rope>(&node.op);
      for (const graph::Port& port : graph::ports(node)) {
        if (port.output || port.tensor != d_x) continue;
        if (!rope || !rope->backward) return false;
        found = true;
      }
    }
    return found;
  }

  /// Only attentions may read a rotated tensor, in the same role: their scales are folded alike.
  Status expect_readers(const Node& node, std::string_view side, TensorId x) const {
    for (const Node& reader : graph_.nodes) {
      int reads = 0;
      for (const graph::Port& port : graph::ports(reader)) {
        reads += !port.output && port.tensor == x;
      }
      if (reads == 0) continue;
      const auto* forward = std::get_if<graph::Sdpa>(&reader.op);
      const auto* backward = std::get_if<graph::SdpaBackward>(&reader.op);
      const bool is_q = (forward && forward->q == x) || (backward && backward->q == x);
      const bool is_k = (forward && forward->k == x) || (backward && backward->k == x);
      if (reads == 1 && (side == "Q" ? is_q : is_k)) continue;
      return refuse(node, fmt::format("'{}' reads its rotated {} too, whose value would change",
                                      reader.name, side));
    }
    return {};
  }

  Status set_factor(const Node& node, size_t rope, double factor) {
    const auto [found, is_new] = factors_.emplace(rope, factor);
    if (is_new || found->second == factor) return {};
    return refuse(node, fmt::format("'{}' also serves an attention with another scale",
                                    graph_.nodes[rope].name));
  }

  Graph& graph_;
  const ScaleFolding& folding_;
  std::map<size_t, double> factors_;  ///< of rope nodes, by place
};

}  // namespace

Status fold_scale(Graph& graph, const ScaleFolding& folding) {
  Graph folded = graph;
  HEDDLE_TRY(ScaleFold(folded, folding).run());
  graph = std::move(folded);
  return {};
}

}  // namespace heddle::fusion
