// Each op's ports and attributes, listed once: the text form's reader and writer, the search for a
// node's inputs and outputs, and anything else that must see every field walk these lists.
//
// fields(visitor, value) calls, in the text form's order and with the text form's names,
//   input(name, TensorId)        a tensor the op reads
//   output(name, TensorId)       a tensor the op makes
//   inputs(name, vector<TensorId>)
//   flag(name, bool)
//   number(name, double or optional<double>)
//   integer(name, int32_t, int64_t or optional<int64_t>)
//   choice(name, enumeration)
//   dims(name, Dims)
//   text(name, string)
//   object(name, struct or optional<struct>)   has fields of its own
//   list(name, vector<struct>)
// on a visitor and a value that is const for a reading visitor.
#pragma once

#include <concepts>
#include <type_traits>

#include "graph/graph.h"

namespace heddle::graph {

template <class T, class Value>
concept Is = std::same_as<std::remove_const_t<T>, Value>;

template <class Visitor, Is<ActivationNumbers> T>
void fields(Visitor& v, T& numbers) {
  v.number("relu_lower_clip", numbers.relu_lower_clip);
  v.number("relu_upper_clip", numbers.relu_upper_clip);
  v.number("relu_lower_clip_slope", numbers.relu_lower_clip_slope);
  v.number("elu_alpha", numbers.elu_alpha);
  v.number("softplus_beta", numbers.softplus_beta);
  v.number("swish_beta", numbers.swish_beta);
}

template <class Visitor, Is<Pointwise> T>
void fields(Visitor& v, T& op) {
  v.choice("op", op.mode);
  v.text("name", op.name);
  v.inputs("inputs", op.inputs);
  v.output("output", op.output);
  v.integer("axis", op.axis);
  fields(v, op.numbers);
}

template <class Visitor, Is<ScoreModifier> T>
void fields(Visitor& v, T& modifier) {
  v.output("score_in", modifier.score_in);  // made by the attention op itself
  v.input("score_out", modifier.score_out);
  v.list("ops", modifier.ops);
}

template <class Visitor, Is<Dropout> T>
void fields(Visitor& v, T& dropout) {
  v.number("probability", dropout.probability);
  v.input("seed", dropout.seed);
  v.input("offset", dropout.offset);
  v.input("mask", dropout.mask);
  v.input("scale", dropout.scale);
  v.input("scale_inv", dropout.scale_inv);
  v.output("rng_dump", dropout.rng_dump);
  v.flag("threefry", dropout.threefry);
  v.dims("threefry_strides", dropout.threefry_strides);
  v.input("streams", dropout.streams);
  v.number("factor", dropout.factor);
}

template <class Visitor, Is<AttentionAttributes> T>
void fields(Visitor& v, T& a) {
  v.number("attn_scale", a.attn_scale);
  v.input("attn_scale_tensor", a.attn_scale_tensor);
  v.input("bias", a.bias);
  v.flag("alibi_mask", a.alibi_mask);
  v.flag("padding_mask", a.padding_mask);
  v.input("seq_len_q", a.seq_len_q);
  v.input("seq_len_kv", a.seq_len_kv);
  v.input("cu_seq_len_q", a.cu_seq_len_q);
  v.input("cu_seq_len_kv", a.cu_seq_len_kv);
  v.integer("max_total_seq_len_q", a.max_total_seq_len_q);
  v.integer("max_total_seq_len_kv", a.max_total_seq_len_kv);
  v.choice("diagonal_alignment", a.diagonal_alignment);
  v.integer("left_bound", a.left_bound);
  v.integer("right_bound", a.right_bound);
  v.object("score_mod", a.score_mod);
  v.input("block_mask", a.block_mask);
  v.object("dropout", a.dropout);
  v.input("sink", a.sink);
  v.flag("softmax_input_is_log2", a.softmax_input_is_log2);
}

template <class Visitor, Is<Sdpa> T>
void fields(Visitor& v, T& op) {
  v.input("q", op.q);
  v.input("k", op.k);
  v.input("v", op.v);
  v.output("o", op.o);
  v.output("stats", op.stats);
  v.output("max", op.max);
  v.output("sum_exp", op.sum_exp);
  v.flag("stats_use_log2", op.stats_use_log2);
  v.output("scores", op.scores);
  v.flag("scores_after_softmax", op.scores_after_softmax);
  v.flag("attn_scale_prefolded", op.attn_scale_prefolded);
  v.input("page_table_k", op.page_table_k);
  v.input("page_table_v", op.page_table_v);
  v.integer("paged_max_seq_len_kv", op.paged_max_seq_len_kv);
  v.input("k_scale", op.k_scale);
  v.input("v_scale", op.v_scale);
  v.integer("max_seq_len_kv", op.max_seq_len_kv);
  v.flag("ring_kv", op.ring_kv);
  fields(v, op.attention);
}

template <class Visitor, Is<SdpaBackward> T>
void fields(Visitor& v, T& op) {
  v.input("q", op.q);
  v.input("k", op.k);
  v.input("v", op.v);
  v.input("o", op.o);
  v.input("d_o", op.d_o);
  v.input("stats", op.stats);
  v.input("max", op.max);
  v.input("sum_exp", op.sum_exp);
  v.input("d_stats", op.d_stats);
  v.output("d_q", op.d_q);
  v.output("d_k", op.d_k);
  v.output("d_v", op.d_v);
  v.output("d_bias", op.d_bias);
  v.output("d_sink", op.d_sink);
  v.flag("deterministic", op.deterministic);
  v.flag("whole_rows", op.whole_rows);
  fields(v, op.attention);
  v.object("score_mod_bprop", op.score_mod_bprop);
}

template <class Visitor, Is<SdpaFp8> T>
void fields(Visitor& v, T& op) {
  v.input("q", op.q);
  v.input("k", op.k);
  v.input("v", op.v);
  v.input("descale_q", op.descale_q);
  v.input("descale_k", op.descale_k);
  v.input("descale_v", op.descale_v);
  v.input("descale_s", op.descale_s);
  v.input("scale_s", op.scale_s);
  v.input("scale_o", op.scale_o);
  v.output("o", op.o);
  v.output("stats", op.stats);
  v.output("amax_s", op.amax_s);
  v.output("amax_o", op.amax_o);
  v.input("page_table_k", op.page_table_k);
  v.input("page_table_v", op.page_table_v);
  v.integer("paged_max_seq_len_kv", op.paged_max_seq_len_kv);
  fields(v, op.attention);
}

template <class Visitor, Is<SdpaFp8Backward> T>
void fields(Visitor& v, T& op) {
  v.input("q", op.q);
  v.input("k", op.k);
  v.input("v", op.v);
  v.input("o", op.o);
  v.input("d_o", op.d_o);
  v.input("stats", op.stats);
  v.input("descale_q", op.descale_q);
  v.input("descale_k", op.descale_k);
  v.input("descale_v", op.descale_v);
  v.input("descale_o", op.descale_o);
  v.input("descale_d_o", op.descale_d_o);
  v.input("descale_s", op.descale_s);
  v.input("descale_d_p", op.descale_d_p);
  v.input("scale_s", op.scale_s);
  v.input("scale_d_q", op.scale_d_q);
  v.input("scale_d_k", op.scale_d_k);
  v.input("scale_d_v", op.scale_d_v);
  v.input("scale_d_p", op.scale_d_p);
  v.output("d_q", op.d_q);
  v.output("d_k", op.d_k);
  v.output("d_v", op.d_v);
  v.output("amax_d_q", op.amax_d_q);
  v.output("amax_d_k", op.amax_d_k);
  v.output("amax_d_v", op.amax_d_v);
  v.output("amax_d_p", op.amax_d_p);
  v.flag("deterministic", op.deterministic);
  fields(v, op.attention);
}

template <class Visitor, Is<Rope> T>
void fields(Visitor& v, T& op) {
  v.input("x", op.x);
  v.input("freqs", op.freqs);
  v.input("cosines", op.cosines);
  v.input("sines", op.sines);
  v.input("positions", op.positions);
  v.output("y", op.y);
  v.number("output_scale", op.output_scale);
  v.integer("rope_dim", op.rope_dim);
  v.flag("leading", op.leading);
  v.choice("pairing", op.pairing);
}

template <class Visitor, Is<RmsNorm> T>
void fields(Visitor& v, T& op) {
  v.input("x", op.x);
  v.input("scale", op.scale);
  v.input("bias", op.bias);
  v.input("epsilon", op.epsilon);
  v.input("residual", op.residual);
  v.input("residual_bias", op.residual_bias);
  v.output("y", op.y);
  v.output("sum", op.sum);
  v.output("inv_variance", op.inv_variance);
}

template <class Visitor, Is<RmsNormBackward> T>
void fields(Visitor& v, T& op) {
  v.input("dy", op.dy);
  v.input("x", op.x);
  v.input("scale", op.scale);
  v.input("inv_variance", op.inv_variance);
  v.output("dx", op.dx);
  v.output("d_scale", op.d_scale);
  v.output("d_bias", op.d_bias);
}

template <class Visitor, Is<LayerNorm> T>
void fields(Visitor& v, T& op) {
  v.input("x", op.x);
  v.input("scale", op.scale);
  v.input("bias", op.bias);
  v.input("epsilon", op.epsilon);
  v.input("residual", op.residual);
  v.input("residual_bias", op.residual_bias);
  v.output("y", op.y);
  v.output("sum", op.sum);
  v.output("mean", op.mean);
  v.output("inv_variance", op.inv_variance);
}

template <class Visitor, class T>
requires Is<T, LayerNormBackward> || Is<T, InstanceNormBackward> || Is<T, BatchNormBackward>
void fields(Visitor& v, T& op) {
  v.input("dy", op.dy);
  v.input("x", op.x);
  v.input("scale", op.scale);
  v.input("mean", op.mean);
  v.input("inv_variance", op.inv_variance);
  v.output("dx", op.dx);
  v.output("d_scale", op.d_scale);
  v.output("d_bias", op.d_bias);
}

template <class Visitor, class T>
requires Is<T, InstanceNorm> || Is<T, BatchNorm>
void fields(Visitor& v, T& op) {
  v.input("x", op.x);
  v.input("scale", op.scale);
  v.input("bias", op.bias);
  v.input("epsilon", op.epsilon);
  if constexpr (Is<T, BatchNorm>) {
    v.input("momentum", op.momentum);
    v.input("running_mean", op.running_mean);
    v.input("running_var", op.running_var);
  }
  v.output("y", op.y);
  v.output("mean", op.mean);
  v.output("inv_variance", op.inv_variance);
  if constexpr (Is<T, BatchNorm>) {
    v.output("next_mean", op.next_mean);
    v.output("next_var", op.next_var);
  }
}

template <class Visitor, Is<CacheAppend> T>
void fields(Visitor& v, T& op) {
  v.input("q", op.q);
  v.input("k", op.k);
  v.input("v", op.v);
  v.input("past_k", op.past_k);
  v.input("past_v", op.past_v);
  v.input("page_table_k", op.page_table_k);
  v.input("page_table_v", op.page_table_v);
  v.input("seq_len_q", op.seq_len_q);
  v.input("seq_len_kv", op.seq_len_kv);
  v.integer("seq_len_kv_offset", op.seq_len_kv_offset);
  v.input("q_norm", op.q_norm);
  v.input("k_norm", op.k_norm);
  v.number("q_epsilon", op.q_epsilon);
  v.number("k_epsilon", op.k_epsilon);
  v.input("cosines", op.cosines);
  v.input("sines", op.sines);
  v.input("positions", op.positions);
  v.choice("pairing", op.pairing);
  v.input("k_scale", op.k_scale);
  v.input("v_scale", op.v_scale);
  v.flag("ring", op.ring);
  v.output("q_out", op.q_out);
  v.output("present_k", op.present_k);
  v.output("present_v", op.present_v);
  v.output("lengths_q", op.lengths_q);
  v.output("lengths_kv", op.lengths_kv);
}

template <class Visitor, Is<PointwiseNode> T>
void fields(Visitor& v, T& op) {
  v.choice("mode", op.mode);
  v.input("a", op.a);
  v.input("b", op.b);
  v.input("c", op.c);
  v.output("y", op.y);
  v.integer("axis", op.axis);
  fields(v, op.numbers);
}

}  // namespace heddle::graph
