// The operator's rules, each in the sentence that its users know.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>

#include "gqa/operator.h"
#include "graph/validate.h"

namespace heddle::gqa {
namespace {

/// Decoding one token of 4 heads on 2, H 32, with a past and rotation.
Operator node() {
  Operator op;
  op.num_heads = 4, op.kv_num_heads = 2, op.do_rotary = 1, op.total_length = 9;
  op.inputs[query] = {DataType::f32, {2, 1, 128}};
  op.inputs[key] = op.inputs[value] = {DataType::f32, {2, 1, 64}};
  op.inputs[past_key] = op.inputs[past_value] = {DataType::f32, {2, 2, 16, 32}};
  op.inputs[seqlens_k] = {DataType::i32, {2}};
  op.inputs[total_sequence_length] = {DataType::i32, {1}};
  op.inputs[cos_cache] = op.inputs[sin_cache] = {DataType::f32, {40, 16}};
  return op;
}

Operator quantised() {
  Operator op = node();
  op.k_quant_type = "PER_CHANNEL", op.v_quant_type = "per_tensor", op.kv_cache_bit_width = 4;
  op.inputs[past_key] = op.inputs[past_value] = {DataType::u8, {2, 2, 16, 16}};
  op.inputs[k_scale] = {DataType::f32, {1, 2, 1, 32}};
  op.inputs[v_scale] = {DataType::f32, {1}};
  return op;
}

Operator windowed() {
  Operator op = node();
  op.sliding_window_cache = 1, op.local_window_size = 8;
  return op;
}

struct Broken {
  const char* sentence;
  std::function<void(Operator&)> breaks;
  Operator (*good)() = node;
};

Shape& at(Operator& op, Input input) { return *op.inputs[input]; }

TEST(Rules, HaveTheirSentences) {
  const Broken rules[] = {
      {"num_heads must be a multiple of kv_num_heads. Got num_heads % kv_num_heads == 1",
       [](auto& op) { op.kv_num_heads = 3; }},
      {"num_heads and kv_num_heads must be positive. Got 0 and 2",
       [](auto& op) { op.num_heads = 0; }},
      {"head_size must be a multiple of 8. Got head_size % 8 == 4",
       [](auto& op) { at(op, query).dims[2] = 144; }},
      {"kv_hidden_size must be a multiple of kv_num_heads. Got kv_hidden_size % kv_num_heads == 1",
       [](auto& op) { at(op, key).dims[2] = at(op, value).dims[2] = 65; }},
      {"kv_hidden_size / kv_num_heads must be equal to head_size. Got",
       [](auto& op) { at(op, key).dims[2] = at(op, value).dims[2] = 32; }},
      {"Input 'query' is expected to have 3 dimensions, got 2",
       [](auto& op) {
         at(op, query).dims = {2, 128};
       }},
      {"Input 'query' is expected to be of type f32, f16 or bf16, got f64",
       [](auto& op) { at(op, query).dtype = DataType::f64; }},
      {"Input 'query' is required", [](auto& op) { op.inputs[query].reset(); }},
      {"Input 'key' and 'value' shall be both present, or both absent in the case of packed qkv.",
       [](auto& op) { op.inputs[value].reset(); }},
      {"Input 'key' is expected to have 3 dimensions, got 4",
       [](auto& op) {
         at(op, key).dims = {2, 1, 2, 32};
       }},
      {"Input 'value' is expected to be of type f32, got f16",
       [](auto& op) { at(op, value).dtype = DataType::f16; }},
      {"Input 'query' and 'key' shall have same dim 0 (batch size)",
       [](auto& op) { at(op, key).dims[0] = 3; }},
      {"Input 'query' and 'value' shall have same dim 0 (batch size)",
       [](auto& op) { at(op, value).dims[0] = 3; }},
      {"Input 'key' and 'value' shall have same dim 1 (sequence length)",
       [](auto& op) { at(op, value).dims[1] = 2; }},
      {"Input 'value' is expected to have same hidden size as key.",
       [](auto& op) { at(op, value).dims[2] = 32; }},
      {"Hidden size of packed qkv must be divisible by num_heads + 2 * kv_num_heads (8). Got 129",
       [](auto& op) {
         op.inputs[key].reset(), op.inputs[value].reset();
         at(op, query).dims[2] = 129;
       }},
      {"Input 'past_key' and 'past_value' shall be both present or both absent.",
       [](auto& op) { op.inputs[past_value].reset(); }},
      {"Input 'past_key' is expected to have 4 dimensions, got 3",
       [](auto& op) {
         at(op, past_key).dims = {2, 2, 16};
       }},
      {"Input 'past_value' dimension 0 should be batch_size, got 1",
       [](auto& op) { at(op, past_value).dims[0] = 1; }},
      {"Input 'past_key' shall have kv_num_heads", [](auto& op) { at(op, past_key).dims[1] = 4; }},
      {"Input 'past_key' dimension 3 should match the packed KV head dimension, got 16",
       [](auto& op) { at(op, past_key).dims[3] = 16; }},
      {"BNSH Input 'past_key' and 'past_value' should have same dimension 2",
       [](auto& op) { at(op, past_value).dims[2] = 15; }},
      {"Input 'past_key' is expected to be of type u8, got i8",
       [](auto& op) { at(op, past_key).dtype = DataType::i8; }, quantised},
      {"query and key must have the same sequence length when past_key is provided, or key "
       "sequence length must be 0 for shared KV",
       [](auto& op) { at(op, key).dims[1] = at(op, value).dims[1] = 2; }},
      {"query and key must have the same sequence length when past_key is not provided.",
       [](auto& op) {
         op.inputs[past_key].reset(), op.inputs[past_value].reset();
         at(op, key).dims[1] = at(op, value).dims[1] = 0;
       }},
      {"total_sequence_length (17) exceeds the 16 rows of the cache",
       [](auto& op) {
         at(op, key).dims[1] = at(op, value).dims[1] = 0;
         op.total_length = 17;
       }},
      {"seqlens_k must be at least 1D, got scalar.", [](auto& op) { at(op, seqlens_k).dims = {}; }},
      {"seqlens_k must have batch_size (2) elements, got 3.",
       [](auto& op) { at(op, seqlens_k).dims = {3}; }},
      {"seqlens_k has unexpected shape. Got [2, 1, 1]",
       [](auto& op) {
         at(op, seqlens_k).dims = {2, 1, 1};
       }},
      {"Input 'seqlens_k' is required", [](auto& op) { op.inputs[seqlens_k].reset(); }},
      {"Input 'seqlens_k' is expected to be of type i32, got i64",
       [](auto& op) { at(op, seqlens_k).dtype = DataType::i64; }},
      {"total_sequence_length tensor must be of one element.",
       [](auto& op) { at(op, total_sequence_length).dims = {2}; }},
      {"Input 'total_sequence_length' is required",
       [](auto& op) { op.inputs[total_sequence_length].reset(); }},
      {"total_sequence_length must be positive, got 0.", [](auto& op) { op.total_length = 0; }},
      {"total_sequence_length must be 2147483647 at most, got 34359738368.",
       [](auto& op) { op.total_length = int64_t{1} << 35; }},
      {"total_sequence_length must be at least kv_sequence_length for a non-sliding cache. Got 2 "
       "and 4.",
       [](auto& op) {
         at(op, query).dims[1] = at(op, key).dims[1] = at(op, value).dims[1] = 4;
         op.inputs[past_key].reset(), op.inputs[past_value].reset();
         op.total_length = 2;
       }},
      {"query_seqlens must have batch_size (2) elements, got [3]",
       [](auto& op) {
         op.inputs[query_seqlens] = {DataType::i32, {3}};
       }},
      {"query_seqlens requires causal=1.",
       [](auto& op) {
         op.inputs[query_seqlens] = {DataType::i32, {2}};
         op.causal = 0;
       }},
      {"head_size shall be a multiple of 16. Got head_size % 16 == 8",
       [](auto& op) {
         at(op, query).dims[2] = 4 * 24;
         at(op, key).dims[2] = at(op, value).dims[2] = 2 * 24;
         at(op, past_key).dims[3] = at(op, past_value).dims[3] = 24;
       }},
      {"Input 'cos_cache' and 'sin_cache' shall be both present or both absent.",
       [](auto& op) { op.inputs[sin_cache].reset(); }},
      {"cos_cache and sin_cache must be passed to GroupQueryAttention when do_rotary = 1",
       [](auto& op) { op.inputs[cos_cache].reset(), op.inputs[sin_cache].reset(); }},
      {"cos_cache dimension 0 shall not be less than total_sequence_length.",
       [](auto& op) { at(op, cos_cache).dims[0] = 8; }},
      {"cos_cache dimension 1 must be <= head_size / 2 and a multiple of 8.",
       [](auto& op) { at(op, cos_cache).dims[1] = 12; }},
      {"cos_cache and sin_cache dimension 1 must be the same.",
       [](auto& op) { at(op, sin_cache).dims[1] = 8; }},
      {"cos_cache and sin_cache dimension 0 must be the same.",
       [](auto& op) { at(op, sin_cache).dims[0] = 41; }},
      {"Input 'cos_cache' is expected to have 2 dimensions, got 1",
       [](auto& op) { at(op, cos_cache).dims = {16}; }},
      {"position_ids dimension 0 must be equal to the batch size, got 1",
       [](auto& op) {
         op.inputs[position_ids] = {DataType::i64, {1, 1}};
       }},
      {"position_ids dimension 1 must be at least sequence length, got 0",
       [](auto& op) {
         op.inputs[position_ids] = {DataType::i64, {2, 0}};
       }},
      {"attention_bias must be a 4D tensor, got 3",
       [](auto& op) {
         op.inputs[attention_bias] = {DataType::f32, {1, 1, 9}};
       }},
      {"attention_bias dimension 0 must be equal to the batch size or 1, got 3",
       [](auto& op) {
         op.inputs[attention_bias] = {DataType::f32, {3, 1, 1, 9}};
       }},
      {"attention_bias dimension 1 must be equal to the num heads or 1, got 2",
       [](auto& op) {
         op.inputs[attention_bias] = {DataType::f32, {1, 2, 1, 9}};
       }},
      {"attention_bias dimension 2 must be equal to the sequence length, got 2",
       [](auto& op) {
         op.inputs[attention_bias] = {DataType::f32, {1, 1, 2, 9}};
       }},
      {"attention_bias dimension 3 must be equal to total_sequence_length, got 16",
       [](auto& op) {
         op.inputs[attention_bias] = {DataType::f32, {1, 1, 1, 16}};
       }},
      {"head_sink must be a 1D tensor",
       [](auto& op) {
         op.inputs[head_sink] = {DataType::f32, {1, 4}};
       }},
      {"head_sink dimension 0 must be equal to the num heads, got 2",
       [](auto& op) {
         op.inputs[head_sink] = {DataType::f32, {2}};
       }},
      {"q_norm_weight and k_norm_weight must be provided together.",
       [](auto& op) {
         op.inputs[q_norm_weight] = {DataType::f32, {32}};
       }},
      {"k_norm_weight must be a 1D tensor of head_size (32) elements, got [16]",
       [](auto& op) {
         op.inputs[q_norm_weight] = {DataType::f32, {32}};
         op.inputs[k_norm_weight] = {DataType::f32, {16}};
       }},
      {"qk_norm_epsilon must be finite and positive. Got 0",
       [](auto& op) { op.qk_norm_epsilon = 0; }},
      {"qk_output attribute received unsupported value 3", [](auto& op) { op.qk_output = 3; }},
      {"qk_output attribute was configured but output buffer was not provided",
       [](auto& op) { op.qk_output = 1; }},
      {"output_qk is provided, but the qk_output attribute is 0",
       [](auto& op) { op.wanted[output_qk] = true; }},
      {"qk_output is not implemented with sliding_window_cache=1.",
       [](auto& op) { op.qk_output = 1, op.wanted[output_qk] = true; }, windowed},
      {"kv_cache_bit_width must be 0, 4 or 8. Got 2", [](auto& op) { op.kv_cache_bit_width = 2; },
       quantised},
      {"kv_cache_bit_width must be 0 when quantization is disabled. Got 8",
       [](auto& op) { op.kv_cache_bit_width = 8; }},
      {"kv_cache_bit_width must be 4 or 8 with quantization. Got 0",
       [](auto& op) { op.kv_cache_bit_width = 0; }, quantised},
      {"k_scale must be provided when k_quant_type is not NONE",
       [](auto& op) { op.inputs[k_scale].reset(); }, quantised},
      {"v_scale must be provided when v_quant_type is not NONE",
       [](auto& op) { op.inputs[v_scale].reset(); }, quantised},
      {"k_scale shape mismatch: expected 64 elements, got [32]",
       [](auto& op) { at(op, k_scale).dims = {32}; }, quantised},
      {"requires k_quant_type and v_quant_type to be both NONE or neither",
       [](auto& op) { op.v_quant_type = "NONE"; }, quantised},
      {"k_quant_type must be NONE, PER_TENSOR or PER_CHANNEL. Got PER_ROW",
       [](auto& op) { op.k_quant_type = "per_row"; }, quantised},
      {"causal must be 0 or 1. Got 2", [](auto& op) { op.causal = 2; }},
      {"local_window_size must be -1 or greater than 0. Got 0",
       [](auto& op) { op.local_window_size = 0; }},
      {"local_window_size must be -1 when causal is 0.",
       [](auto& op) { op.causal = 0, op.local_window_size = 4; }},
      {"sliding_window_cache=1 requires local_window_size > 0.",
       [](auto& op) { op.local_window_size = -1; }, windowed},
      {"sliding_window_cache=1 requires past_key and past_value to be present.",
       [](auto& op) { op.inputs[past_key].reset(), op.inputs[past_value].reset(); }, windowed},
      {"sliding_window_cache: KV cache capacity (16) must be at least local_window_size (17).",
       [](auto& op) { op.local_window_size = 17; }, windowed},
      {"scale must be finite", [](auto& op) { op.scale = INFINITY; }},
      {"softcap must be finite and not negative. Got -1", [](auto& op) { op.softcap = -1; }},
      {"softcap must be 0, or from 2^-126 to the largest number of f32. Got 1e-50",
       [](auto& op) { op.softcap = 1e-50; }},
      {"softcap must be 0, or from 2^-126 to the largest number of f32. Got 1e+300",
       [](auto& op) { op.softcap = 1e300; }},
  };
  for (const Broken& rule : rules) {
    Operator op = rule.good();
    ASSERT_TRUE(graph_of(op).is_ok()) << graph_of(op).status().message();
    rule.breaks(op);
    const auto broken = graph_of(op);
    ASSERT_FALSE(broken.is_ok()) << rule.sentence;
    EXPECT_NE(broken.status().message().find(rule.sentence), std::string::npos)
        << broken.status().message() << "\n  expected " << rule.sentence;
  }
}

graph::Graph valid(const Operator& op) {
  auto graph = graph_of(op);
  EXPECT_TRUE(graph.is_ok()) << graph.status().message();
  const Status status = validate(*graph);
  EXPECT_TRUE(status.is_ok()) << status.message();
  return *graph;
}

/// The tensor that an execution binds by a uid; null if there is none.
const graph::Tensor* bound(const graph::Graph& graph, int64_t uid) {
  for (const graph::Tensor& tensor : graph.tensors)
    if (tensor.uid == uid && !tensor.is_virtual && !tensor.constant) return &tensor;
  return nullptr;
}

TEST(Graph, IsAnAppendAndAnAttention) {
  const graph::Graph graph = valid(node());
  ASSERT_EQ(graph.nodes.size(), 2u);
  EXPECT_TRUE(std::holds_alternative<graph::CacheAppend>(graph.nodes[0].op));
  EXPECT_EQ(bound(graph, uid_of(query))->strides, (Dims{128, 32, 128, 1}));
  EXPECT_EQ(bound(graph, uid_of(present_key))->dims, (Dims{2, 2, 16, 32}));
  EXPECT_EQ(bound(graph, uid_of(output))->strides, (Dims{128, 32, 128, 1}));
  EXPECT_EQ(bound(graph, uid_of(total_sequence_length)), nullptr);
}

TEST(Graph, AnEmptyPastIsNone) {
  Operator op = node();
  at(op, past_key).dims[2] = at(op, past_value).dims[2] = 0;
  const graph::Graph graph = valid(op);
  EXPECT_EQ(bound(graph, uid_of(past_key)), nullptr);
  EXPECT_EQ(bound(graph, uid_of(present_key))->dims, (Dims{2, 2, 9, 32}));
}

TEST(Graph, PresentThatNobodyWantsIsVirtual) {
  Operator op = node();
  op.wanted[present_key] = op.wanted[present_value] = false;
  EXPECT_EQ(bound(valid(op), uid_of(present_key)), nullptr);
}

TEST(Graph, OfASharedCacheAppendsNothing) {
  Operator op = node();
  at(op, key).dims[1] = at(op, value).dims[1] = 0;
  op.wanted[present_key] = op.wanted[present_value] = false;
  const graph::Graph graph = valid(op);
  EXPECT_EQ(bound(graph, uid_of(key)), nullptr);
  EXPECT_EQ(bound(graph, uid_of(present_key)), nullptr);
  EXPECT_NE(bound(graph, uid_of(past_key)), nullptr);
  EXPECT_EQ(graph.nodes.size(), 2U);
}

TEST(Graph, OfASharedCacheThatIsWantedHandsItOnAfterItIsRead) {
  Operator op = node();
  at(op, key).dims[1] = at(op, value).dims[1] = 0;
  op.wanted[present_value] = false;
  const graph::Graph graph = valid(op);
  EXPECT_EQ(bound(graph, uid_of(present_key))->dims, (Dims{2, 2, 16, 32}));
  EXPECT_EQ(bound(graph, uid_of(present_value)), nullptr);
  EXPECT_TRUE(std::holds_alternative<graph::Sdpa>(graph.nodes[1].op));
  EXPECT_TRUE(std::holds_alternative<graph::CacheAppend>(graph.nodes.back().op));
}

TEST(Graph, ManyTokensOfAWindowedCacheGoThroughAStage) {
  Operator op = windowed();
  EXPECT_EQ(valid(op).nodes.size(), 2u);
  at(op, query).dims[1] = at(op, key).dims[1] = at(op, value).dims[1] = 9;
  EXPECT_EQ(valid(op).nodes.size(), 2u) << "16 rows hold 9 new ones and the 7 that the first sees";
  at(op, query).dims[1] = at(op, key).dims[1] = at(op, value).dims[1] = 10;
  op.total_length = 30;
  const graph::Graph graph = valid(op);
  ASSERT_EQ(graph.nodes.size(), 3u);
  const auto& staged = std::get<graph::CacheAppend>(graph.nodes[0].op);
  EXPECT_EQ(graph[staged.present_k].dims, (Dims{2, 2, 17, 32}));
}

}  // namespace
}  // namespace heddle::gqa
