#include "rewrite/plan.h"

#include <algorithm>

#include "rewrite/planner.h"

namespace heddle::rewrite {

using graph::TensorId;
using hlo::Instruction;

std::vector<const Instruction*> Operand::sources() const {
  std::vector<const Instruction*> sources;
  for (const WeightFactor& factor : times) sources.push_back(factor.place.x);
  if (share_by) sources.push_back(share_by->x);
  if (of_forward || made == Made::full_lengths || made == Made::logits || made == Made::filled ||
      made == Made::table_starts)
    return sources;
  if (made != Made::key) sources.push_back(place.x);
  for (const RngDropoutMask::KeyWord& word : key)
    if (made == Made::key && word.place) sources.push_back(word.place->x);
  return sources;
}

Result<Plan> plan_forward(Elements& elements, const Match& match, bool stats,
                          const Surroundings& surroundings) {
  Planner planner(elements, match, surroundings);
  HEDDLE_TRY(planner.begin());
  graph::Sdpa op;
  HEDDLE_ASSIGN(op.q, planner.rotated_operand("Q", match.score.q, planner.q_axes()));
  HEDDLE_ASSIGN(op.k, planner.rotated_operand("K", match.score.k, planner.k_axes()));
  HEDDLE_ASSIGN(op.v, planner.values());
  const size_t v = planner.plan().operands.size() - 1;
  HEDDLE_TRY(planner.set_attributes(op.attention));
  if (const Output* o = match.find(Role::o)) {
    HEDDLE_ASSIGN(op.o, planner.result("O", *o, planner.o_axes()));
    HEDDLE_TRY(planner.add_fully_masked_rows(v));
    HEDDLE_TRY(planner.multiply_result(match.factors.of_rows));
  } else {
    op.o = planner.inner_result("O", planner.o_axes());
  }
  if (const Output* max = match.find(Role::max)) {
    HEDDLE_ASSIGN(op.max, planner.statistic("Max", *max));
    HEDDLE_ASSIGN(op.sum_exp, planner.statistic("Sum_exp", *match.find(Role::sum_exp)));
    planner.plan().results.back().taken_off = match.taken_off;
  } else if (stats && planner.needs_sum_apart()) {
    op.max = planner.statistic("Max");
    op.sum_exp = planner.statistic("Sum_exp");
  } else if (stats) {
    op.stats = planner.statistic("Stats");
  }
  planner.plan().graph.nodes.push_back({"attention", op});
  return planner.take();
}

namespace {

/// The labels of the values' depth.
std::vector<Var> value_depth(const Match& match) {
  std::vector<Var> depth;
  const Index scores = flat(match.anchor.at);
  for (Var v : flat(match.v.at))
    if (std::find(scores.begin(), scores.end(), v) == scores.end()) depth.push_back(v);
  return depth;
}

}  // namespace

std::optional<Renaming> same_attention(const Match& forward, const Match& backward,
                                       const Elements& elements) {
  const auto computation = [&](int frame) { return elements.frames()[frame].computation; };
  if (forward.anchor.x != backward.anchor.x ||
      computation(forward.anchor.frame) != computation(backward.anchor.frame))
    return std::nullopt;
  Renaming names;
  // The backward's frames are those of the forward, or as they are read back.
  const auto are_one = [&](int a, int b) {
    int of_forward = forward.anchor.frame, of_backward = backward.anchor.frame;
    while (of_forward >= 0 && of_backward >= 0 && a != b) {
      if (a == of_forward && b == of_backward) return true;
      of_forward = elements.frames()[of_forward].parent;
      of_backward = elements.frames()[of_backward].parent;
    }
    return a == b;
  };
  // Both places of one value: labels of dimensions in the order in which they stand.
  const auto agree = [&](const Element& a, const Element& b) {
    if (!are_one(a.frame, b.frame) || a.x != b.x) return false;
    for (size_t i = 0; i < a.at.size(); ++i) {
      if (a.at[i].size() != b.at[i].size()) return false;
      for (size_t j = 0; j < a.at[i].size(); ++j)
        if (names.try_emplace(a.at[i][j], b.at[i][j]) != b.at[i][j]) return false;
    }
    return true;
  };
  const auto have_same_values = [&] {
    if (!backward.v_is_unread) return agree(forward.v, backward.v);
    const std::vector<Var> a = value_depth(forward), b = value_depth(backward);
    if (a.size() != b.size()) return false;
    for (size_t i = 0; i < a.size(); ++i)
      if (elements.size(a[i]) != elements.size(b[i]) || names.try_emplace(a[i], b[i]) != b[i])
        return false;
    return true;
  };
  if (!agree(forward.anchor, backward.anchor) || !agree(forward.score.q, backward.score.q) ||
      !agree(forward.score.k, backward.score.k) || !have_same_values() ||
      !forward.dropout != !backward.dropout || !forward.sink != !backward.sink)
    return std::nullopt;
  const auto &of_keys = forward.factors.of_keys, &others = backward.factors.of_keys;
  if (!std::equal(of_keys.begin(), of_keys.end(), others.begin(), others.end(),
                  [&](const WeightFactor& a, const WeightFactor& b) {
                    return a.divides == b.divides && agree(a.place, b.place);
                  }))
    return std::nullopt;
  if (forward.sink) {
    const Sink &a = *forward.sink, &b = *backward.sink;
    if (!a.place != !b.place || a.value != b.value || (a.place && !agree(*a.place, *b.place)))
      return std::nullopt;
  }
  if (forward.dropout) {
    const Keep &a = forward.dropout->keep, &b = backward.dropout->keep;
    if (a.is_negated != b.is_negated || !agree(a.predicate, b.predicate)) return std::nullopt;
  }
  return names;
}

Result<Plan> plan_backward(Elements& elements, const Match& match, const ForwardCall& forward,
                           const Surroundings& surroundings) {
  Planner planner(elements, match, surroundings);
  HEDDLE_TRY(planner.begin(&forward.plan));
  graph::SdpaBackward op;
  HEDDLE_ASSIGN(op.q, planner.rotated_operand("Q", match.score.q, planner.q_axes()));
  HEDDLE_ASSIGN(op.k, planner.rotated_operand("K", match.score.k, planner.k_axes()));
  HEDDLE_ASSIGN(op.v, planner.values());
  const size_t v = planner.plan().operands.size() - 1;
  HEDDLE_ASSIGN(op.d_o, planner.output_gradient());
  const size_t d_o = planner.plan().operands.size() - 1;
  // O and statistics as the forward call returns them; O perhaps as the program itself keeps it.
  const graph::Sdpa& sdpa = std::get<graph::Sdpa>(forward.plan.graph.nodes.back().op);
  const auto from_forward = [&](TensorId id, int number) {
    const graph::Tensor& t = forward.plan.graph[id];
    Operand operand;
    operand.of_forward = number;
    if (number == 0) {
      const CallResult& result = forward.plan.results[0];
      operand.axes = planner.o_axes();
      operand.place = result.direct ? renamed(result.place, forward.names)
                                    : Element{0, nullptr, {operand.axes.canonical()}};
    }
    const bool is_widened =
        planner.plan().dtype == hlo::ElementType::f32 && *t.dtype != DataType::f32;
    if (is_widened) operand.made = Made::as_f32;
    planner.plan().operands.push_back(std::move(operand));
    return planner.tensor(t.name, is_widened ? DataType::f32 : *t.dtype, t.dims, t.strides);
  };
  planner.plan().forward = forward.number;
  const bool elsewhere = forward.plan.home != match.home;
  if (elsewhere && !planner.carries())
    return error(Code::graph_not_supported,
                 "the loop that holds the forward cannot keep anything more for the loop that "
                 "holds the backward");
  const auto kept = elsewhere && !forward.plan.fully_masked_rows
                        ? planner.stacked_result(forward.plan.results[0], forward.names)
                        : std::nullopt;
  if (kept) {
    HEDDLE_ASSIGN(op.o, planner.vectors("O", *kept, planner.o_axes()));
  } else if (match.whole_rows) {
    // rowsum(dO * O) of whole rows is given: that of O = 0 is 0, and dStats is it.
    op.o = planner.filled("O", planner.o_axes(), 0);
  } else {
    op.o = from_forward(sdpa.o, 0);
  }
  const size_t o = planner.plan().operands.size() - 1;
  if (sdpa.stats != graph::kNone) {
    op.stats = from_forward(sdpa.stats, 1);
  } else {
    op.max = from_forward(sdpa.max, 1);
    op.sum_exp = from_forward(sdpa.sum_exp, 2);
  }
  op.whole_rows = !match.whole_rows;
  if (match.whole_rows) {
    HEDDLE_ASSIGN(op.d_stats, planner.given_mean());
  }
  HEDDLE_TRY(planner.set_attributes(op.attention));
  const Roles roles = planner.plan().roles;
  const auto labels_beyond = [&](const Element& place, Index known) {
    Index rest;
    for (Var v : flat(place.at))
      if (std::find(known.begin(), known.end(), v) == known.end()) rest.push_back(v);
    return rest;
  };
  std::optional<size_t> d_v;
  for (const Output& output : match.outputs) {
    // In the order of the operands, so that uids and results agree.
    Axes axes;
    switch (output.role) {
      case Role::d_q: {
        axes = planner.q_axes();
        axes.columns = labels_beyond(output.place, flat({axes.batch, axes.heads, axes.rows}));
        HEDDLE_ASSIGN(op.d_q, planner.derotated_result("dQ", "Q", output, axes));
        break;
      }
      case Role::d_k: {
        axes = planner.k_axes();
        axes.columns = labels_beyond(output.place, flat({axes.batch, axes.heads, axes.rows}));
        HEDDLE_ASSIGN(op.d_k, planner.derotated_result("dK", "K", output, axes));
        break;
      }
      case Role::d_v: {
        axes = planner.v_axes();
        axes.columns = labels_beyond(output.place, flat({axes.batch, axes.heads, axes.rows}));
        HEDDLE_ASSIGN(op.d_v, planner.result("dV", output, axes));
        HEDDLE_TRY(planner.add_fully_masked_rows(d_o));
        HEDDLE_TRY(planner.multiply_result(match.factors.of_keys));
        d_v = planner.plan().results.size() - 1;
        break;
      }
      case Role::d_bias: {
        const graph::Tensor& bias = planner.plan().graph[op.attention.bias];
        axes = {bias.dims[0] == 1 ? Index{} : roles.batch,
                bias.dims[1] == 1 ? Index{} : roles.query_heads(),
                bias.dims[2] == 1 ? Index{} : roles.rows, bias.dims[3] == 1 ? Index{} : roles.keys};
        HEDDLE_ASSIGN(op.d_bias, planner.result("dBias", output, axes));
        break;
      }
      case Role::d_sink: {
        axes.heads = roles.query_heads();
        if (flat(output.place.at).size() != axes.heads.size())
          return error(Code::graph_not_supported,
                       "%{} is the gradient of a sink that several heads share; a call gives each "
                       "head's own",
                       output.place.x->name());
        HEDDLE_ASSIGN(op.d_sink, planner.wide_result("dSink", output, axes));
        break;
      }
      case Role::o:
      case Role::max:
      case Role::sum_exp:
      case Role::d_factor:
        break;
    }
  }
  for (const Output& output : match.outputs) {
    if (output.role != Role::d_factor) continue;
    if (!d_v && output.of >= match.factors.of_rows.size()) {
      d_v = planner.plan().results.size();
      op.d_v = planner.inner_result("dV", planner.v_axes());
    }
    HEDDLE_TRY(planner.add_factor_gradient(output, d_o, o, v, d_v));
  }
  planner.plan().graph.nodes.push_back({"attention_backward", op});
  planner.finish();
  return planner.take();
}

}  // namespace heddle::rewrite
