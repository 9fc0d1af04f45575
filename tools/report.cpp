#include "tools/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>

#include "graph/extents.h"
#include "graph/names.h"
#include "graph/text.h"
#include "rewrite/report.h"
#include "tools/table.h"

namespace heddle::tools {
namespace {

using graph::AttentionAttributes;
using graph::Graph;
using graph::kNone;
using graph::TensorId;
using rewrite::Fusion;

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

std::string sink_of(const AttentionAttributes& a) { return a.sink == kNone ? "none" : "per head"; }

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
  fusion.scale = a.attn_scale.value_or(1);
  fusion.mask = mask_of(a);
  fusion.bias = bias_of(graph, a);
  fusion.sink = sink_of(a);
  fusion.dropout = dropout_of(a.dropout);
  fusion.score = score_of(a);
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
    {"serves several rows of scores",
     "Map over queries or keys too, not over biases or masks alone: each entry then has its own "
     "product."},
    {"no function of scores that calls compute",
     "A call computes a scale, a soft cap (cap * tanh(score / cap)), masks, and what is added to "
     "or multiplied by the product."},
    {"taken from a log-sum-exp",
     "Take the weights by jax.nn.softmax (return_residual makes them of the residual), or ask "
     "heddle.jax.attention for both, by return_lse."},
    {"alone or among others",
     "Of exponentials that are put together block by block take off the largest score so far, "
     "jnp.maximum(before, scores.max(-1)), and leave their gradient to a program without blocks."},
    {"no product of these weights",
     "If this is attention, keep the softmax and its product with V in one function."},
    {"not kept for the loop",
     "Put jax.checkpoint around the layer, so that its backward has all it needs."},
    {"needed elsewhere too",
     "If the weights are wanted for inspection only, leave them out of the training step."},
    {"something else reads the weights",
     "If the weights are wanted for inspection only, leave them out of the training step."},
    {"calls give those of up to", "Stop the gradient by some of them (jax.lax.stop_gradient)."},
    {"to a backward outside of it",
     "Put jax.checkpoint around the branch, so that its backward has all it needs."},
    {"their sum and a number more",
     "Divide by the sum alone: with the row's maximum taken off the scores it is at least 1, and "
     "of weights that are "
     "masked afterwards hide the scores instead."},
    {"keeps their sum from being small",
     "Take the largest score that the row sees off all of them before the exponential, and guard "
     "their sum by a number less than 1, if at all."},
    {"see no key are not 0", "Let rows that see no key be 0."},
    {"differs between rows or batch entries", "Give each head one sink."},
    {"sink that several heads share",
     "Give each head a sink of its own, or keep the sink constant."},
    {"several pieces", "Pass such a mask as an additive bias (0 and -inf)."},
    {"more than is evaluated", "Build the mask from iotas and comparisons, not as a constant."},
    {"made of the scores themselves", "Make the mask of positions, lengths or other data."},
    {"see no key", "Give such rows a key, or mask with -inf and expect 0 there."},
    {"which scores can reach", "Fill masked scores with -inf or jnp.finfo(dtype).min."},
    {"which scores may reach", "Fill masked scores with -inf or jnp.finfo(dtype).min."},
    {"within reach of the scores is no mask",
     "Fill masked scores with -inf or jnp.finfo(dtype).min."},
    {"may reach the mask's fill",
     "Fill masked scores with -inf or jnp.finfo(dtype).min, or mask once, before the softmax."},
    {"a term that is neither",
     "Move what multiplies the scores to the queries; what is added to them may be any array."},
    {"is not the gradient P * (dP - rowsum(P * dP))",
     "Leave the derivative of the softmax to jax.grad."},
    {"dO and the values hold the digits", "Split and join heads of dO and V in the same order."},
    {"along a part of head_dim", "Split heads first, then repeat whole heads."},
    {"queries and keys hold the digits", "Split and join heads of Q and K in the same order."},
    {"made of floating numbers that are rounded", "Compute positions in integers."},
    {"is f64, but", "Compute attention in float32, bfloat16 or float16."},
    {"has elements of type", "Convert it to float32, bfloat16 or float16."},
    {"nothing sums this exponential",
     "An exponential on its own, as in SiLU; there is nothing to fuse."},
};

std::string_view way_out(std::string_view reason) {
  for (const Advice& advice : kAdvice)
    if (reason.find(advice.part) != std::string_view::npos) return advice.way_out;
  return "";
}

/// "exp.1 in main.3 (model.py:12, jit(step)/encoder/exp)", as far as the program says it.
std::string place_of(const rewrite::Refusal& r) {
  std::string origin;
  if (!r.source.file.empty()) origin = fmt::format("{}:{}", r.source.file, r.source.line);
  if (!r.source.operation.empty()) origin += (origin.empty() ? "" : ", ") + r.source.operation;
  const std::string place = fmt::format("{} in {}", r.instruction, r.computation);
  return origin.empty() ? place : fmt::format("{} ({})", place, origin);
}

// The one way in which a rewritten module may differ.
constexpr std::string_view kFilled =
    "NaN in the original, numbers in the rewritten module: a row whose scores are all -inf is NaN "
    "by "
    "softmax and 0 in a call";

using Json = nlohmann::ordered_json;

/// JSON has no infinity.
Json figure(double x) { return std::isfinite(x) ? Json(x) : Json("inf"); }

double share(int64_t part, int64_t whole) {
  return whole == 0 ? 1 : static_cast<double>(part) / static_cast<double>(whole);
}

Json as_json(const hlo::OutputJudgement& output) {
  Json json = {{"shape", hlo::to_string_without_layout(output.shape)},
               {"finite_share", share(output.compared, output.elements)},
               {"error", figure(output.error)},
               {"row", output.row},
               {"row_error", figure(output.row_error)},
               {"row_original", figure(output.row_original)},
               {"row_allowed", figure(output.row_allowed)},
               {"ok", output.complaint.empty()}};
  if (output.filled > 0) json["filled"] = output.filled;
  if (!output.complaint.empty()) json["complaint"] = output.complaint;
  return json;
}

Json as_json(const Verification& verification) {
  Json trials = Json::array();
  int64_t filled = 0;
  for (const Trial& trial : verification.trials) {
    Json outputs = Json::array();
    for (const hlo::OutputJudgement& output : trial.outputs) {
      outputs.push_back(as_json(output));
      filled += output.filled;
    }
    trials.push_back({{"inputs", trial.inputs}, {"outputs", std::move(outputs)}});
  }
  Json json = {{"ok", verification.ok()},
               {"outputs", verification.trials[0].outputs.size()},
               {"max_relative_error", figure(verification.max_relative_error)},
               {"trials", std::move(trials)}};
  if (!verification.ok()) json["complaint"] = verification.complaint;
  if (filled > 0) json["exception"] = fmt::format("{} elements are {}", filled, kFilled);
  return json;
}

/// The output of a trial that comes closest to what it is allowed, or exceeds it most.
const hlo::OutputJudgement* nearest(const Trial& trial) {
  const auto key = [](const hlo::OutputJudgement& output) {
    return std::pair(!output.complaint.empty(),
                     output.row_allowed > 0 ? output.row_error / output.row_allowed : 0);
  };
  const auto found =
      std::max_element(trial.outputs.begin(), trial.outputs.end(),
                       [&](const auto& a, const auto& b) { return key(a) < key(b); });
  return found == trial.outputs.end() ? nullptr : &*found;
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

std::string to_json(const rewrite::Report& report,
                    const std::optional<Verification>& verification) {
  Json json = Json::parse(rewrite::to_json(report));
  if (verification) json["verify"] = as_json(*verification);
  return json.dump(1) + "\n";
}

std::string fusions_table(const std::vector<Fusion>& fusions) {
  std::vector<std::vector<std::string>> rows = {{"attention", "in", "batch", "heads", "queries",
                                                 "keys", "d", "dtype", "scale", "mask", "bias",
                                                 "sink", "dropout", "score"}};
  for (const Fusion& f : fusions)
    rows.push_back({f.kind.substr(f.kind.find('_') + 1), f.computation, fmt::format("{}", f.batch),
                    fmt::format("{}/{}", f.q_heads, f.kv_heads), fmt::format("{}", f.q_len),
                    fmt::format("{}", f.kv_len), fmt::format("{}", f.head_dim), f.dtype,
                    fmt::format("{:.4g}", f.scale), f.mask, f.bias, f.sink, f.dropout,
                    f.score == "dot" ? "none" : f.score});
  return table(rows);
}

std::string to_people(const Verification& verification) {
  std::vector<std::vector<std::string>> rows = {
      {"inputs", "outputs", "finite", "largest error", "nearest to allowed", "allowed", ""}};
  int64_t filled = 0;
  for (const Trial& trial : verification.trials) {
    int64_t elements = 0, compared = 0;
    double largest = 0;
    bool ok = true;
    for (const hlo::OutputJudgement& output : trial.outputs) {
      elements += output.elements;
      compared += output.compared;
      filled += output.filled;
      largest = std::max(largest, output.error);
      ok = ok && output.complaint.empty();
    }
    const hlo::OutputJudgement* row = nearest(trial);
    rows.push_back({trial.inputs, fmt::format("{}", trial.outputs.size()),
                    fmt::format("{:.1f}%", 100 * share(compared, elements)),
                    fmt::format("{:.2e}", largest), fmt::format("{:.2e}", row ? row->row_error : 0),
                    fmt::format("{:.2e}", row ? row->row_allowed : 0), ok ? "ok" : "WRONG"});
  }
  std::string text = "\nVerified against f64, every output and each of its rows:\n" + table(rows);
  if (filled > 0)
    text += wrap(fmt::format("{} elements are {}.", filled, kFilled), kWidth, 0) + "\n";
  return text;
}

std::string to_people(const rewrite::Report& report) {
  std::string text = fmt::format(
      "{}: {} instructions; attention calls: {}, places left alone: {}\n", report.module,
      report.instructions, report.fusions.size(), report.refusals.size());
  if (!report.has_softmax)
    text +=
        "It holds no softmax (no exponential is summed as it is), so there is no attention to "
        "fuse.\n";
  if (report.without_values > 0)
    text += fmt::format("Softmaxes that weigh no values, as in a loss, with nothing to fuse: {}\n",
                        report.without_values);
  if (!report.fusions.empty()) text += "\n" + fusions_table(report.fusions);
  // The same reason, met at several places, is said once.
  std::map<std::string, std::vector<std::string>> places;
  for (const rewrite::Refusal& r : report.refusals) places[r.reason].push_back(place_of(r));
  if (!places.empty()) text += "\nLeft as it was:\n";
  for (const auto& [reason, where] : places) {
    std::string line = fmt::format("- {}", where[0]);
    for (size_t i = 1; i < where.size(); ++i) line += ", " + where[i];
    text += wrap(fmt::format("{}: {}. {}", line, reason, way_out(reason)), kWidth, 2) + "\n";
  }
  return text;
}

}  // namespace heddle::tools
