// Small valid graphs that tests begin from.
#pragma once

#include <utility>

#include "graph/graph.h"

namespace heddle::graph::samples {

inline Tensor tensor(const char* name, Dims dims, std::optional<DataType> dtype = std::nullopt) {
  Tensor t;
  t.name = name;
  t.dims = dims;
  t.strides = *dense_strides(dims);
  t.dtype = dtype;
  return t;
}

/// An output whose dims are inferred.
inline Tensor output(const char* name, std::optional<DataType> dtype = std::nullopt) {
  Tensor t;
  t.name = name;
  t.dtype = dtype;
  return t;
}

inline Tensor virtual_tensor(const char* name) {
  Tensor t;
  t.name = name;
  t.is_virtual = true;
  return t;
}

inline Tensor constant(const char* name, double value) {
  Tensor t;
  t.name = name;
  t.constant = value;
  return t;
}

inline Graph empty_graph() {
  Graph graph;
  graph.name = "sample";
  graph.io_dtype = DataType::bf16;
  graph.intermediate_dtype = DataType::f32;
  graph.compute_dtype = DataType::f32;
  return graph;
}

/// sdpa of B=2, 8 query heads on 2 key heads, Sq=Skv=64, D=32.
inline Graph sdpa() {
  Graph graph = empty_graph();
  Sdpa op;
  op.q = graph.add(tensor("q", {2, 8, 64, 32}));
  op.k = graph.add(tensor("k", {2, 2, 64, 32}));
  op.v = graph.add(tensor("v", {2, 2, 64, 32}));
  op.o = graph.add(output("o"));
  op.stats = graph.add(output("stats", DataType::f32));
  op.attention.attn_scale = 0.125;
  op.attention.right_bound = 0;
  graph.nodes.push_back({"attention", op});
  return graph;
}

inline Sdpa& sdpa_of(Graph& graph) { return std::get<Sdpa>(graph.nodes.back().op); }

/// The backward of sdpa().
inline Graph sdpa_backward() {
  Graph graph = empty_graph();
  SdpaBackward op;
  op.q = graph.add(tensor("q", {2, 8, 64, 32}));
  op.k = graph.add(tensor("k", {2, 2, 64, 32}));
  op.v = graph.add(tensor("v", {2, 2, 64, 32}));
  op.o = graph.add(tensor("o", {2, 8, 64, 32}));
  op.d_o = graph.add(tensor("d_o", {2, 8, 64, 32}));
  op.stats = graph.add(tensor("stats", {2, 8, 64, 1}, DataType::f32));
  op.d_q = graph.add(output("d_q"));
  op.d_k = graph.add(output("d_k"));
  op.d_v = graph.add(output("d_v"));
  op.whole_rows = true;
  op.attention.attn_scale = 0.125;
  op.attention.right_bound = 0;
  graph.nodes.push_back({"attention_backward", op});
  return graph;
}

/// sdpa_backward() that is given the maximum and the sum of exponentials in place of Stats.
inline Graph sdpa_backward_of_pair() {
  Graph graph = sdpa_backward();
  auto& op = std::get<SdpaBackward>(graph.nodes.back().op);
  graph[op.stats].name = "max";
  op.max = std::exchange(op.stats, kNone);
  op.sum_exp = graph.add(tensor("sum_exp", {2, 8, 64, 1}, DataType::f32));
  return graph;
}

/// sdpa_backward() of a loss that also reads the rows' log-sum-exps.
inline Graph sdpa_backward_of_stats() {
  Graph graph = sdpa_backward();
  std::get<SdpaBackward>(graph.nodes.back().op).d_stats =
      graph.add(tensor("d_stats", {2, 8, 64, 1}, DataType::f32));
  return graph;
}

inline SdpaBackward& backward_of(Graph& graph) {
  return std::get<SdpaBackward>(graph.nodes.back().op);
}

inline Graph rope() {
  Graph graph = empty_graph();
  Rope op;
  op.x = graph.add(tensor("x", {2, 8, 64, 32}));
  op.freqs = graph.add(tensor("freqs", {128, 1, 1, 16}, DataType::f32));
  op.y = graph.add(output("y"));
  op.rope_dim = 16;
  graph.nodes.push_back({"rope", op});
  return graph;
}

inline Rope& rope_of(Graph& graph) { return std::get<Rope>(graph.nodes.back().op); }

/// rope(Q), rope(K) and sdpa, the rotated tensors virtual.
inline Graph rope_sdpa() {
  Graph graph = sdpa();
  const Sdpa attention = sdpa_of(graph);
  Rope q_rope, k_rope;
  q_rope.x = attention.q;
  k_rope.x = attention.k;
  q_rope.freqs = k_rope.freqs = graph.add(tensor("freqs", {64, 1, 1, 32}, DataType::f32));
  sdpa_of(graph).q = q_rope.y = graph.add(virtual_tensor("q_rotated"));
  sdpa_of(graph).k = k_rope.y = graph.add(virtual_tensor("k_rotated"));
  graph[q_rope.y].dtype = graph[k_rope.y].dtype = DataType::bf16;
  graph.nodes.push_back({"rope_q", q_rope});
  graph.nodes.push_back({"rope_k", k_rope});
  return graph;
}

/// A soft cap, 50 * tanh(s / 50), as a score expression of sdpa().
inline Graph soft_cap() {
  Graph graph = sdpa();
  ScoreModifier cap;
  cap.score_in = graph.add(virtual_tensor("score"));
  const TensorId fifty = graph.add(constant("cap", 50));
  const TensorId scaled = graph.add(virtual_tensor("scaled"));
  const TensorId bounded = graph.add(virtual_tensor("bounded"));
  cap.score_out = graph.add(virtual_tensor("capped"));
  cap.ops.push_back({PointwiseMode::div, {cap.score_in, fifty}, scaled, 0, "div"});
  cap.ops.push_back({PointwiseMode::tanh_fwd, {scaled}, bounded, 0, "tanh"});
  cap.ops.push_back({PointwiseMode::mul, {bounded, fifty}, cap.score_out, 0, "mul"});
  sdpa_of(graph).attention.score_mod = cap;
  return graph;
}

/// sdpa() of scores times their sigmoids.
inline Graph swish_scores() {
  Graph graph = sdpa();
  ScoreModifier swish;
  swish.score_in = graph.add(virtual_tensor("score"));
  swish.score_out = graph.add(virtual_tensor("swished"));
  Pointwise op{PointwiseMode::swish_fwd, {swish.score_in}, swish.score_out, 0, "swish"};
  op.numbers.swish_beta = 1.5;
  swish.ops.push_back(op);
  sdpa_of(graph).attention.score_mod = swish;
  return graph;
}

inline Graph rms_norm() {
  Graph graph = empty_graph();
  RmsNorm op;
  op.x = graph.add(tensor("x", {128, 512, 1, 1}));
  op.scale = graph.add(tensor("weight", {1, 512, 1, 1}, DataType::f32));
  op.epsilon = graph.add(constant("epsilon", 1e-6));
  op.y = graph.add(output("y"));
  op.inv_variance = graph.add(output("inv_variance", DataType::f32));
  graph.nodes.push_back({"norm", op});
  return graph;
}

inline Graph rms_norm_backward() {
  Graph graph = empty_graph();
  RmsNormBackward op;
  op.dy = graph.add(tensor("dy", {128, 512, 1, 1}));
  op.x = graph.add(tensor("x", {128, 512, 1, 1}));
  op.scale = graph.add(tensor("weight", {1, 512, 1, 1}, DataType::f32));
  op.inv_variance = graph.add(tensor("inv_variance", {128, 1, 1, 1}, DataType::f32));
  op.dx = graph.add(output("dx"));
  op.d_scale = graph.add(output("d_weight", DataType::f32));
  op.d_bias = graph.add(output("d_bias", DataType::f32));
  graph.nodes.push_back({"norm_backward", op});
  return graph;
}

inline Graph layer_norm() {
  Graph graph = empty_graph();
  LayerNorm op;
  op.x = graph.add(tensor("x", {128, 512, 1, 1}));
  op.scale = graph.add(tensor("weight", {1, 512, 1, 1}, DataType::f32));
  op.bias = graph.add(tensor("bias", {1, 512, 1, 1}, DataType::f32));
  op.epsilon = graph.add(constant("epsilon", 1e-5));
  op.y = graph.add(output("y"));
  op.residual = graph.add(tensor("residual", {128, 512, 1, 1}));
  op.residual_bias = graph.add(tensor("residual_bias", {1, 512, 1, 1}, DataType::f32));
  op.sum = graph.add(output("sum"));
  op.mean = graph.add(output("mean", DataType::f32));
  op.inv_variance = graph.add(output("inv_variance", DataType::f32));
  graph.nodes.push_back({"norm", op});
  return graph;
}

inline Graph layer_norm_backward() {
  Graph graph = empty_graph();
  LayerNormBackward op;
  op.dy = graph.add(tensor("dy", {128, 512, 1, 1}));
  op.x = graph.add(tensor("x", {128, 512, 1, 1}));
  op.scale = graph.add(tensor("weight", {1, 512, 1, 1}, DataType::f32));
  op.mean = graph.add(tensor("mean", {128, 1, 1, 1}, DataType::f32));
  op.inv_variance = graph.add(tensor("inv_variance", {128, 1, 1, 1}, DataType::f32));
  op.dx = graph.add(output("dx"));
  op.d_scale = graph.add(output("d_weight", DataType::f32));
  op.d_bias = graph.add(output("d_bias", DataType::f32));
  graph.nodes.push_back({"norm_backward", op});
  return graph;
}

inline Graph instance_norm() {
  Graph graph = empty_graph();
  InstanceNorm op;
  op.x = graph.add(tensor("x", {4, 16, 6, 5}));
  op.scale = graph.add(tensor("weight", {1, 16, 1, 1}, DataType::f32));
  op.bias = graph.add(tensor("bias", {1, 16, 1, 1}, DataType::f32));
  op.epsilon = graph.add(constant("epsilon", 1e-5));
  op.y = graph.add(output("y"));
  op.mean = graph.add(output("mean", DataType::f32));
  op.inv_variance = graph.add(output("inv_variance", DataType::f32));
  graph.nodes.push_back({"norm", op});
  return graph;
}

inline Graph batch_norm() {
  Graph graph = empty_graph();
  BatchNorm op;
  op.x = graph.add(tensor("x", {4, 16, 6, 5}));
  op.scale = graph.add(tensor("weight", {1, 16, 1, 1}, DataType::f32));
  op.bias = graph.add(tensor("bias", {1, 16, 1, 1}, DataType::f32));
  op.epsilon = graph.add(constant("epsilon", 1e-5));
  op.y = graph.add(output("y"));
  op.mean = graph.add(output("mean", DataType::f32));
  op.inv_variance = graph.add(output("inv_variance", DataType::f32));
  op.momentum = graph.add(constant("momentum", 0.1));
  op.running_mean = graph.add(tensor("running_mean", {1, 16, 1, 1}, DataType::f32));
  op.running_var = graph.add(tensor("running_var", {1, 16, 1, 1}, DataType::f32));
  op.next_mean = graph.add(output("next_mean", DataType::f32));
  op.next_var = graph.add(output("next_var", DataType::f32));
  graph.nodes.push_back({"norm", op});
  return graph;
}

inline Graph batch_norm_backward() {
  Graph graph = empty_graph();
  BatchNormBackward op;
  op.dy = graph.add(tensor("dy", {4, 16, 6, 5}));
  op.x = graph.add(tensor("x", {4, 16, 6, 5}));
  op.scale = graph.add(tensor("weight", {1, 16, 1, 1}, DataType::f32));
  op.mean = graph.add(tensor("mean", {1, 16, 1, 1}, DataType::f32));
  op.inv_variance = graph.add(tensor("inv_variance", {1, 16, 1, 1}, DataType::f32));
  op.dx = graph.add(output("dx"));
  op.d_scale = graph.add(output("d_weight", DataType::f32));
  op.d_bias = graph.add(output("d_bias", DataType::f32));
  graph.nodes.push_back({"norm_backward", op});
  return graph;
}

/// y = (x + bias) where the mask says so, else its index along S.
inline Graph pointwise() {
  Graph graph = empty_graph();
  const TensorId x = graph.add(tensor("x", {2, 8, 64, 32}));
  const TensorId bias = graph.add(tensor("bias", {1, 8, 1, 32}, DataType::f32));
  const TensorId mask = graph.add(tensor("mask", {2, 1, 64, 1}, DataType::boolean));
  const TensorId sum = graph.add(output("sum")), row = graph.add(output("row"));
  graph[sum].is_virtual = graph[row].is_virtual = true;
  const TensorId y = graph.add(output("y"));
  using Mode = PointwiseMode;
  graph.nodes = {
      {"add", PointwiseNode{.mode = Mode::add, .a = x, .b = bias, .y = sum}},
      {"row", PointwiseNode{.mode = Mode::gen_index, .a = x, .y = row, .axis = 2}},
      {"select",
       PointwiseNode{.mode = Mode::binary_select, .a = mask, .b = sum, .c = row, .y = y}}};
  return graph;
}
/// x through a ReLU with a slope below -1, up to 6.
inline Graph relu() {
  Graph graph = empty_graph();
  const TensorId x = graph.add(tensor("x", {2, 8, 64, 32})), y = graph.add(output("y"));
  PointwiseNode op{.mode = PointwiseMode::relu_fwd, .a = x, .y = y};
  op.numbers.relu_lower_clip = -1, op.numbers.relu_upper_clip = 6;
  op.numbers.relu_lower_clip_slope = 0.125;
  graph.nodes.push_back({"relu", op});
  return graph;
}
inline PointwiseNode& pointwise_of(Graph& graph, size_t node) {
  return std::get<PointwiseNode>(graph.nodes[node].op);
}

/// Two new tokens of 8 query heads and 2 key heads, D 32, packed, normalised and rotated; caches of
/// 64 rows.
inline Graph cache_append() {
  Graph graph = empty_graph();
  CacheAppend op;
  op.q = graph.add(tensor("qkv", {2, 12, 2, 32}));
  op.past_k = graph.add(tensor("past_k", {2, 2, 64, 32}));
  op.past_v = graph.add(tensor("past_v", {2, 2, 64, 32}));
  op.seq_len_kv = graph.add(tensor("totals", {2, 1, 1, 1}, DataType::i32));
  op.q_norm = graph.add(tensor("q_weight", {1, 1, 1, 32}));
  op.k_norm = graph.add(tensor("k_weight", {1, 1, 1, 32}));
  op.cosines = graph.add(tensor("cosines", {64, 1, 1, 8}));
  op.sines = graph.add(tensor("sines", {64, 1, 1, 8}));
  op.q_out = graph.add(output("q"));
  op.present_k = graph.add(output("present_k"));
  op.present_v = graph.add(output("present_v"));
  op.lengths_q = graph.add(output("lengths_q", DataType::i32));
  op.lengths_kv = graph.add(output("lengths_kv", DataType::i32));
  graph.nodes.push_back({"append", op});
  return graph;
}

inline CacheAppend& append_of(Graph& graph) { return std::get<CacheAppend>(graph.nodes.back().op); }

/// The same in int8 and with Q, K and V apart.
inline Graph cache_append_of_codes() {
  Graph graph = cache_append();
  CacheAppend& op = append_of(graph);
  graph[op.q].dims = {2, 8, 2, 32};
  graph[op.q].strides = *dense_strides(graph[op.q].dims);
  op.k = graph.add(tensor("k", {2, 2, 2, 32}));
  op.v = graph.add(tensor("v", {2, 2, 2, 32}));
  op.k_scale = graph.add(tensor("k_scale", {1, 2, 1, 32}, DataType::f32));
  op.v_scale = graph.add(tensor("v_scale", {1, 1, 1, 1}, DataType::f32));
  for (TensorId id : {op.past_k, op.past_v, op.present_k, op.present_v})
    graph[id].dtype = DataType::i8;
  return graph;
}

}  // namespace heddle::graph::samples
