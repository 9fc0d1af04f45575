// Each problem's operands, listed once: whatever has to see all of them walks these lists.
//
// operands(visit, structure) calls visit(name, id, use) for each place that names an operand,
// absent ones too; of a norm with a fourth argument, the RowPart. `name` is what sentences call it;
// `id` is const for a reading visitor. An operand that several places name is visited as often.
#pragma once

#include <concepts>
#include <type_traits>
#include <vector>

#include "problem/problem.h"

namespace heddle::problem {

enum class Use : uint8_t {
  read,
  value,  ///< read as a number that an engine may take from host memory when it launches
  written,
};

/// Which dims of a norm's x an operand has; the others are 1.
enum class RowPart : uint8_t {
  whole,
  row,
  column,
  channel,  ///< the last of the rows'
};

template <class T, class Kind>
concept Is = std::same_as<std::remove_const_t<T>, Kind>;

template <class Visitor, Is<ScoreExpression> T>
void operands(Visitor&& visit, T& score) {
  for (auto& node : score.nodes)
    if (node.op == ScoreOp::load) visit("an operand that the score loads", node.operand, Use::read);
}

template <class Visitor, Is<Rope> T>
void operands(Visitor&& visit, T& rope) {
  visit("rope angles", rope.angles, Use::read);
  visit("rope cosines", rope.cosines, Use::read);
  visit("rope sines", rope.sines, Use::read);
  visit("rope positions", rope.positions, rope.positions_per_row ? Use::read : Use::value);
  visit("a rotated tensor", rope.rotated, Use::written);
}

template <class Visitor, Is<Dropout> T>
void operands(Visitor&& visit, T& dropout) {
  visit("the dropout seed", dropout.seed, Use::value);
  visit("the dropout offset", dropout.offset, Use::value);
  visit("dropout streams", dropout.streams, Use::read);
  visit("the dropout mask", dropout.mask, Use::read);
  visit("the dropout scale", dropout.mask_scale, Use::value);
  visit("the dropout dump", dropout.dump, Use::written);
}

/// Those of head_dim columns, whose rows kernels move. A backward reads the forward's O.
template <class Visitor, Is<AttentionStructure> T>
void tensors(Visitor&& visit, T& s, Use of_results = Use::written) {
  visit("q", s.q, Use::read);
  visit("k", s.k, Use::read);
  visit("v", s.v, Use::read);
  visit("o", s.o, of_results);
}

template <class Visitor, Is<AttentionBackwardStructure> T>
void tensors(Visitor&& visit, T& s) {
  tensors(visit, s.forward, Use::read);
  visit("dO", s.d_o, Use::read);
  visit("dQ", s.d_q, Use::written);
  visit("dK", s.d_k, Use::written);
  visit("dV", s.d_v, Use::written);
}

/// An operand and what sentences call it.
struct NamedOperand {
  OperandId id = kAbsent;
  const char* name = "";
};

/// Those tensors of an attention, or of its backward, that are present.
template <class Structure>
std::vector<NamedOperand> tensors_of(const Structure& structure) {
  std::vector<NamedOperand> all;
  tensors(
      [&](const char* name, OperandId id, Use) {
        if (id != kAbsent) all.push_back({id, name});
      },
      structure);
  return all;
}

/// What forward and backward share beside the tensors.
template <class Visitor, Is<AttentionStructure> T>
void operands_beside_tensors(Visitor&& visit, T& s, Use of_results) {
  visit("stats", s.stats, of_results);
  visit("max", s.max, of_results);
  visit("sum_exp", s.sum_exp, of_results);
  visit("scores", s.scores, of_results);
  visit("the attention scale", s.scale, Use::value);
  operands(visit, s.score);
  visit("block_mask", s.block_mask, Use::read);
  visit("q_lengths", s.q_lengths, Use::read);
  visit("kv_lengths", s.kv_lengths, Use::read);
  visit("sink", s.sink, Use::read);
  operands(visit, s.dropout);
  if (s.q_rope) operands(visit, *s.q_rope);
  if (s.k_rope) operands(visit, *s.k_rope);
}

template <class Visitor, Is<AttentionStructure> T>
void operands(Visitor&& visit, T& s) {
  tensors(visit, s);
  operands_beside_tensors(visit, s, Use::written);
}

template <class Visitor, Is<AttentionBackwardStructure> T>
void operands(Visitor&& visit, T& s) {
  tensors(visit, s);
  operands_beside_tensors(visit, s.forward, Use::read);
  visit("dStats", s.d_stats, Use::read);
  visit("the largest gradient of a dot product", s.largest_d_dot, Use::written);
  visit("dSink", s.d_sink, Use::written);
  operands(visit, s.d_dot);
  for (auto& wanted : s.load_gradients) {
    visit("a load with a gradient", wanted.load, Use::read);
    visit("the gradient of a load", wanted.gradient, Use::written);
    operands(visit, wanted.derivative);
  }
  if (s.d_q_rope) operands(visit, *s.d_q_rope);
  if (s.d_k_rope) operands(visit, *s.d_k_rope);
}

template <class Visitor, Is<Fp8AttentionStructure> T>
void scales(Visitor&& visit, T& s) {
  visit("descale_q", s.descale_q, Use::read);
  visit("descale_k", s.descale_k, Use::read);
  visit("descale_v", s.descale_v, Use::read);
  visit("descale_s", s.descale_s, Use::read);
  visit("scale_s", s.scale_s, Use::read);
  visit("scale_o", s.scale_o, Use::read);
  visit("amax_s", s.amax_s, Use::written);
  visit("amax_o", s.amax_o, Use::written);
}

template <class Visitor, Is<Fp8AttentionBackwardStructure> T>
void scales(Visitor&& visit, T& s) {
  visit("descale_q", s.descale_q, Use::read);
  visit("descale_k", s.descale_k, Use::read);
  visit("descale_v", s.descale_v, Use::read);
  visit("descale_o", s.descale_o, Use::read);
  visit("descale_dO", s.descale_d_o, Use::read);
  visit("descale_s", s.descale_s, Use::read);
  visit("descale_dP", s.descale_d_p, Use::read);
  visit("scale_s", s.scale_s, Use::read);
  visit("scale_dP", s.scale_d_p, Use::read);
  visit("scale_dQ", s.scale_d_q, Use::read);
  visit("scale_dK", s.scale_d_k, Use::read);
  visit("scale_dV", s.scale_d_v, Use::read);
  visit("amax_dQ", s.amax_d_q, Use::written);
  visit("amax_dK", s.amax_d_k, Use::written);
  visit("amax_dV", s.amax_d_v, Use::written);
  visit("amax_dP", s.amax_d_p, Use::written);
}

/// Scales and largest magnitudes, beside those of the attention.
template <class Visitor, class T>
requires Is<T, Fp8AttentionStructure> || Is<T, Fp8AttentionBackwardStructure>
void operands(Visitor&& visit, T& s) {
  operands(visit, s.attention);
  scales(visit, s);
}

/// Those that lie in rows and columns; x, which the others are measured by, comes first.
template <class Visitor, Is<NormStructure> T>
void tensors(Visitor&& visit, T& s) {
  visit("x", s.x, Use::read, RowPart::whole);
  visit("weight", s.weight, Use::read, RowPart::column);
  visit("bias", s.bias, Use::read, RowPart::column);
  visit("residual", s.residual, Use::read, RowPart::whole);
  visit("residual bias", s.residual_bias, Use::read, RowPart::column);
  visit("sum", s.sum, Use::written, RowPart::whole);
  visit("y", s.y, Use::written, RowPart::whole);
  visit("mean", s.mean, Use::written, RowPart::row);
  visit("inv_rms", s.inv_rms, Use::written, RowPart::row);
}

template <class Visitor, Is<NormBackwardStructure> T>
void tensors(Visitor&& visit, T& s) {
  visit("x", s.x, Use::read, RowPart::whole);
  visit("dy", s.dy, Use::read, RowPart::whole);
  visit("weight", s.weight, Use::read, RowPart::column);
  visit("mean", s.mean, Use::read, RowPart::row);
  visit("inv_rms", s.inv_rms, Use::read, RowPart::row);
  visit("dx", s.dx, Use::written, RowPart::whole);
  visit("d_weight", s.d_weight, Use::written, RowPart::column);
  visit("d_bias", s.d_bias, Use::written, RowPart::column);
}

template <class Visitor, Is<ChannelNormStructure> T>
void tensors(Visitor&& visit, T& s) {
  visit("x", s.x, Use::read, RowPart::whole);
  visit("weight", s.weight, Use::read, RowPart::channel);
  visit("bias", s.bias, Use::read, RowPart::channel);
  visit("y", s.y, Use::written, RowPart::whole);
  visit("mean", s.mean, Use::written, RowPart::row);
  visit("inv_rms", s.inv_rms, Use::written, RowPart::row);
  visit("running mean", s.running_mean, Use::read, RowPart::row);
  visit("running variance", s.running_var, Use::read, RowPart::row);
  visit("next mean", s.next_mean, Use::written, RowPart::row);
  visit("next variance", s.next_var, Use::written, RowPart::row);
}

template <class Visitor, Is<ChannelNormBackwardStructure> T>
void tensors(Visitor&& visit, T& s) {
  visit("x", s.x, Use::read, RowPart::whole);
  visit("dy", s.dy, Use::read, RowPart::whole);
  visit("weight", s.weight, Use::read, RowPart::channel);
  visit("mean", s.mean, Use::read, RowPart::row);
  visit("inv_rms", s.inv_rms, Use::read, RowPart::row);
  visit("dx", s.dx, Use::written, RowPart::whole);
  visit("d_weight", s.d_weight, Use::written, RowPart::channel);
  visit("d_bias", s.d_bias, Use::written, RowPart::channel);
}

template <class Visitor, Is<NormStructure> T>
void operands(Visitor&& visit, T& s) {
  tensors([&](const char* name, auto& id, Use use, RowPart) { visit(name, id, use); }, s);
  visit("epsilon", s.epsilon, Use::value);
}

template <class Visitor, Is<ChannelNormStructure> T>
void operands(Visitor&& visit, T& s) {
  tensors([&](const char* name, auto& id, Use use, RowPart) { visit(name, id, use); }, s);
  visit("epsilon", s.epsilon, Use::value);
  visit("momentum", s.momentum, Use::value);
}

template <class Visitor, class T>
requires Is<T, NormBackwardStructure> || Is<T, ChannelNormBackwardStructure>
void operands(Visitor&& visit, T& s) {
  tensors([&](const char* name, auto& id, Use use, RowPart) { visit(name, id, use); }, s);
}

template <class Visitor, Is<RopeStructure> T>
void operands(Visitor&& visit, T& s) {
  visit("x", s.x, Use::read);
  visit("y", s.y, Use::written);
  operands(visit, s.rope);
}

/// Those of rows that kernels move.
template <class Visitor, Is<CacheAppendStructure> T>
void tensors(Visitor&& visit, T& s) {
  visit("q", s.q, Use::read);
  visit("k", s.k, Use::read);
  visit("v", s.v, Use::read);
  visit("past k", s.past_k, Use::read);
  visit("past v", s.past_v, Use::read);
  visit("the cache of k", s.k_cache, Use::written);
  visit("the cache of v", s.v_cache, Use::written);
  visit("rotated q", s.q_out, Use::written);
}

template <class Visitor, Is<CacheAppendStructure> T>
void operands(Visitor&& visit, T& s) {
  tensors(visit, s);
  visit("new_lengths", s.new_lengths, Use::read);
  visit("total_lengths", s.total_lengths, Use::read);
  visit("the norm weight of q", s.q_norm, Use::read);
  visit("the norm weight of k", s.k_norm, Use::read);
  visit("cosines", s.cosines, Use::read);
  visit("sines", s.sines, Use::read);
  visit("positions", s.positions, Use::read);
  visit("lengths_q", s.lengths_q, Use::written);
  visit("lengths_kv", s.lengths_kv, Use::written);
}

template <class Visitor, Is<PointwiseStructure> T>
void operands(Visitor&& visit, T& s) {
  for (auto& node : s.nodes)
    if (node.op == ScoreOp::load) visit("an input", node.operand, Use::read);
  for (auto& result : s.results) visit("a result", result.y, Use::written);
}

/// The types and layouts that ids of a problem of any kind count through.
template <class Kind>
requires requires(Kind& problem) { problem.structure; }
auto& types_of(Kind& problem) {
  if constexpr (requires { problem.structure.forward; })
    return problem.structure.forward.operands;
  else if constexpr (requires { problem.structure.attention.forward; })
    return problem.structure.attention.forward.operands;
  else if constexpr (requires { problem.structure.attention; })
    return problem.structure.attention.operands;
  else
    return problem.structure.operands;
}
inline const std::vector<OperandType>& types_of(const Problem& problem) {
  return std::visit(
      [](const auto& one) -> const std::vector<OperandType>& { return types_of(one); }, problem);
}
inline std::vector<OperandLayout>& layouts_of(Problem& problem) {
  return std::visit([](auto& one) -> std::vector<OperandLayout>& { return one.sizes.layouts; },
                    problem);
}

}  // namespace heddle::problem
