#include "tools/report.h"

#include <fmt/format.h>

#include <map>
#include <nlohmann/json.hpp>

#include "graph/extents.h"
#include "graph/names.h"
#include "graph/text.h"
#include "tools/heddle_call.h"
#include "tools/table.h"

namespace heddle::tools {
namespace {

using graph::AttentionAttributes;
using graph::Graph;
using graph::kNone;
using graph::TensorId;

constexpr size_t kWidth = 100;

std::string mask_of(const AttentionAttributes& a) {
  const bool bottom_right = a.diagonal_alignment == graph::DiagonalAlignment::bottom_right;
  const auto bound = [](const std::optional<int64_t>& value) {
    return value ? fmt::format("{}", *value) : std::string("unbounded");
  };
  std::string mask = "none";
  if (a.right_bound == 0 && !a.left_bound) {
    mask = "causal";
  } else if (a.left_bound || a.right_bound) {
    mask = fmt::format("window left {} right {}", bound(a.left_bound), bound(a.right_bound));
  }
  if (mask != "none" && bottom_right) mask += " (bottom right)";
  if (a.padding_mask) mask = mask == "none" ? "padding" : mask + ", padding";
  if (a.block_mask != kNone) mask = mask == "none" ? "blocks" : mask + ", blocks";
  return mask;
}

std::string bias_of(const Graph& graph, const AttentionAttributes& a) {
  if (a.bias == kNone) return a.alibi_mask ? "alibi" : "none";
  const std::string shape =
      fmt::format("{}{}", name(*graph[a.bias].dtype), to_string(graph[a.bias].dims));
  return a.alibi_mask ? shape + ", alibi" : shape;
}

std::string dropout_of(const graph::Dropout& dropout) {
  if (dropout.mask != kNone) return "mask";
  if (!dropout.probability) return "none";
  return fmt::format("{} {}", dropout.threefry ? "threefry" : "philox", *dropout.probability);
}

std::string score_of(const AttentionAttributes& a) {
  if (!a.score_mod) return "none";
  std::string ops;
  for (const graph::Pointwise& op : a.score_mod->ops)
    ops += fmt::format("{}{}", ops.empty() ? "" : ", ", name(op.mode));
  return ops.empty() ? "none" : ops;
}

/// Which of q and k come through a RoPE of this graph (backward: whose gradients leave through
/// one).
std::string rope_of(const Graph& graph, TensorId q, TensorId k) {
  bool of_q = false, of_k = false;
  for (const graph::Node& node : graph.nodes) {
    const auto* rope = std::get_if<graph::Rope>(&node.op);
    if (rope == nullptr) continue;
    of_q = of_q || rope->y == q || rope->x == q;
    of_k = of_k || rope->y == k || rope->x == k;
  }
  return of_q && of_k ? "q and k" : of_q ? "q" : of_k ? "k" : "none";
}

template <class Op>
Fusion describe(const Graph& graph, const Op& op) {
  const graph::AttentionExtents extents = graph::extents(graph, op);
  const AttentionAttributes& a = op.attention;
  Fusion fusion;
  fusion.batch = extents.batch;
  fusion.q_heads = extents.q_heads;
  fusion.kv_heads = extents.k_heads;
  fusion.q_len = extents.q_length;
  fusion.kv_len = extents.kv_length;
  fusion.head_dim = extents.qk_head_dim;
  fusion.dtype = name(*graph[op.q].dtype);
  if (a.attn_scale_tensor == kNone) fusion.scale = a.attn_scale.value_or(1);
  fusion.mask = mask_of(a);
  fusion.bias = bias_of(graph, a);
  fusion.dropout = dropout_of(a.dropout);
  fusion.score = score_of(a);
  fusion.rope = rope_of(graph, op.q, op.k);
  fusion.graph = graph::write_text(graph);
  return fusion;
}

struct Advice {
  std::string_view part;  // of the reason
  std::string_view way_out;
};

/// What a user can do about a refusal, by what its reason says.
constexpr Advice kAdvice[] = {
    {"no product of queries and keys",
     "A softmax over something else than Q K^T; there is nothing to fuse."},
    {"no product of these weights",
     "If this is attention, keep softmax and its product with V in one function."},
    {"no gradient",
     "Only the forward is fused here; jax.checkpoint around the layer brings both together."},
    {"several pieces", "Pass such a mask as an additive bias (0 and -inf)."},
    {"more than is evaluated", "Build the mask from iotas and comparisons, not as a constant."},
    {"nothing sums this exponential",
     "An exponential on its own (as in SiLU); there is nothing to fuse."},
};

std::string_view way_out(std::string_view reason) {
  for (const Advice& advice : kAdvice)
    if (reason.find(advice.part) != std::string_view::npos) return advice.way_out;
  return "";
}

}  // namespace

std::optional<Fusion> describe(const Graph& graph) {
  for (const graph::Node& node : graph.nodes) {
    if (const auto* op = std::get_if<graph::Sdpa>(&node.op)) {
      Fusion fusion = describe(graph, *op);
      fusion.kind = "attention_forward";
      return fusion;
    }
    if (const auto* op = std::get_if<graph::SdpaBackward>(&node.op)) {
      Fusion fusion = describe(graph, *op);
      fusion.kind = "attention_backward";
      return fusion;
    }
  }
  return std::nullopt;
}

Result<std::vector<Fusion>> fusions_of(const hlo::Module& module) {
  std::vector<Fusion> fusions;
  for (const hlo::Instruction* call : heddle_calls(module)) {
    HEDDLE_ASSIGN(const Graph graph, graph_of(*call));
    if (std::optional<Fusion> fusion = describe(graph)) {
      fusion->computation = call->computation()->name();
      fusions.push_back(std::move(*fusion));
    }
  }
  return fusions;
}

std::string to_json(const Report& report) {
  using Json = nlohmann::ordered_json;
  Json fusions = Json::array(), refusals = Json::array();
  for (const Fusion& f : report.fusions) {
    fusions.push_back({{"kind", f.kind},
                       {"computation", f.computation},
                       {"batch", f.batch},
                       {"q_heads", f.q_heads},
                       {"kv_heads", f.kv_heads},
                       {"q_len", f.q_len},
                       {"kv_len", f.kv_len},
                       {"head_dim", f.head_dim},
                       {"dtype", f.dtype},
                       {"scale", f.scale ? Json(*f.scale) : Json()},
                       {"mask", f.mask},
                       {"bias", f.bias},
                       {"dropout", f.dropout},
                       {"score", f.score},
                       {"rope", f.rope},
                       {"graph", f.graph}});
  }
  for (const Refused& r : report.refusals)
    refusals.push_back(
        {{"computation", r.computation}, {"instruction", r.instruction}, {"reason", r.reason}});
  Json json = {{"module", report.module},
               {"instructions", report.instructions},
               {"fusions", fusions},
               {"refusals", refusals}};
  if (report.verification) {
    Json errors = Json::array();
    for (const OutputError& output : report.verification->outputs)
      errors.push_back({{"shape", output.shape},
                        {"original", output.original},
                        {"fused", output.fused},
                        {"allowed", output.allowed},
                        {"ok", output.ok}});
    json["verify"] = {{"ok", report.verification->ok},
                      {"max_relative_error", report.verification->max_relative_error},
                      {"outputs", report.verification->outputs.size()},
                      {"errors", errors}};
  }
  return json.dump(1) + "\n";
}

std::string to_people(const Report& report) {
  std::string text =
      fmt::format("{}: {} instructions, {} fused, {} refused\n", report.module, report.instructions,
                  report.fusions.size(), report.refusals.size());
  if (!report.fusions.empty()) {
    std::vector<std::vector<std::string>> rows = {{"fused", "in", "batch", "heads", "queries",
                                                   "keys", "d", "dtype", "scale", "mask", "rope",
                                                   "bias", "dropout", "score"}};
    for (const Fusion& f : report.fusions)
      rows.push_back({f.kind == "attention_forward" ? "forward" : "backward", f.computation,
                      fmt::format("{}", f.batch), fmt::format("{}/{}", f.q_heads, f.kv_heads),
                      fmt::format("{}", f.q_len), fmt::format("{}", f.kv_len),
                      fmt::format("{}", f.head_dim), f.dtype,
                      f.scale ? fmt::format("{:.4g}", *f.scale) : "tensor", f.mask, f.rope, f.bias,
                      f.dropout, f.score});
    text += "\n" + table(rows);
  }
  // The same reason, met at several places, is said once.
  std::map<std::string, std::vector<std::string>> places;
  for (const Refused& r : report.refusals)
    places[r.reason].push_back(fmt::format("{} in {}", r.instruction, r.computation));
  if (!places.empty()) text += "\nLeft as it was:\n";
  for (const auto& [reason, where] : places) {
    std::string line = fmt::format("- {}", where[0]);
    for (size_t i = 1; i < where.size(); ++i) line += ", " + where[i];
    text += wrap(fmt::format("{}: {}. {}", line, reason, way_out(reason)), kWidth, 2) + "\n";
  }
  return text;
}

}  // namespace heddle::tools
