// GroupQueryAttention as ONNX Runtime's users know it: one node's inputs, outputs and attributes,
// with the operator's defaults and limits; and the graph that computes it.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>

#include "core/status.h"
#include "graph/graph.h"

namespace heddle::gqa {

/// In the operator's order.
enum Input : int {
  query,
  key,
  value,
  past_key,
  past_value,
  seqlens_k,
  total_sequence_length,
  cos_cache,
  sin_cache,
  position_ids,
  attention_bias,
  head_sink,
  k_scale,
  v_scale,
  q_norm_weight,
  k_norm_weight,
  query_seqlens,
};
inline constexpr int kInputs = query_seqlens + 1;
enum Output : int { output, present_key, present_value, output_qk };
inline constexpr int kOutputs = output_qk + 1;

struct Shape {
  DataType dtype = DataType::f32;
  Dims dims;
};

struct Operator {
  std::array<std::optional<Shape>, kInputs> inputs;
  std::array<bool, kOutputs> wanted{true, true, true, false};
  int64_t total_length = 0;  ///< what the input total_sequence_length holds

  int64_t num_heads = 0, kv_num_heads = 0;
  double scale = 0;    ///< 0: 1 / sqrt(head size)
  double softcap = 0;  ///< 0: none
  int64_t causal = 1;
  int64_t local_window_size = -1;  ///< keys that a row sees, its own included; -1: all
  int64_t sliding_window_cache = 0;
  int64_t do_rotary = 0, rotary_interleaved = 0;
  int64_t smooth_softmax = -1;  ///< 1: a sink of 0 beside every row
  int64_t qk_output = 0;
  double qk_norm_epsilon = 1e-6;
  std::optional<double> q_norm_epsilon, k_norm_epsilon;  ///< unset: qk_norm_epsilon
  std::string k_quant_type = "NONE", v_quant_type = "NONE";
  int64_t kv_cache_bit_width = 0;

  bool has(Input input) const { return inputs[input].has_value(); }
  const Shape& operator[](Input input) const { return *inputs[input]; }
};

/// Uids of the graph's tensors: an execution binds input n by 1 + n, output n by 101 + n. Of the
/// inputs total_sequence_length is never bound, nor those that nothing asks for.
inline constexpr int64_t uid_of(Input input) { return 1 + input; }
inline constexpr int64_t uid_of(Output output) { return 101 + output; }

/// The operator as a graph: cache_append, then sdpa. Fails in the sentences that the operator's
/// users know. Tensors are views of the node's own memory: query [B,S,N*H] is [B,N,S,H] there, and
/// packed [B,N+2Nk,S,H].
///
/// Any batch has prompts, chunks and single tokens, whatever total_length says: lengths are those
/// on the device. Present may have the address of past, of a layer that shares another's cache (a
/// key of length 0) too: it is then that cache, and elsewhere a copy of it.
Result<graph::Graph> graph_of(const Operator& op);

}  // namespace heddle::gqa
