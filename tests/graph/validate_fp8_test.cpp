// The rules of sdpa_fp8 and sdpa_fp8_backward.
#include "graph/broken_graphs.h"

namespace heddle::graph {
namespace {

TensorId f32(Graph& g, const char* name) {
  return g.add(tensor(name, {1, 1, 1, 1}, DataType::f32));
}

/// B=2, 8 query heads on 2 key heads, Sq=Skv=64, D=32.
Graph fp8() {
  Graph g = samples::empty_graph();
  g.io_dtype = DataType::f8e4m3;
  SdpaFp8 op;
  op.q = g.add(tensor("q", {2, 8, 64, 32}));
  op.k = g.add(tensor("k", {2, 2, 64, 32}, DataType::f8e5m2));
  op.v = g.add(tensor("v", {2, 2, 64, 32}));
  op.descale_q = f32(g, "dq"), op.descale_k = f32(g, "dk"), op.descale_v = f32(g, "dv");
  op.descale_s = f32(g, "ds"), op.scale_s = f32(g, "ss"), op.scale_o = f32(g, "so");
  op.o = g.add(samples::output("o"));
  op.stats = g.add(samples::output("stats", DataType::f32));
  op.amax_s = g.add(samples::output("amax_s", DataType::f32));
  op.amax_o = g.add(samples::output("amax_o", DataType::f32));
  g.nodes.push_back({"attention", op});
  return g;
}

Graph fp8_backward() {
  Graph g = samples::empty_graph();
  g.io_dtype = DataType::f8e4m3;
  SdpaFp8Backward op;
  op.q = g.add(tensor("q", {2, 8, 64, 32}));
  op.k = g.add(tensor("k", {2, 2, 64, 32}));
  op.v = g.add(tensor("v", {2, 2, 64, 32}));
  op.o = g.add(tensor("o", {2, 8, 64, 32}));
  op.d_o = g.add(tensor("d_o", {2, 8, 64, 32}, DataType::f8e5m2));
  op.stats = g.add(tensor("stats", {2, 8, 64, 1}, DataType::f32));
  for (TensorId* id :
       {&op.descale_q, &op.descale_k, &op.descale_v, &op.descale_o, &op.descale_d_o, &op.descale_s,
        &op.descale_d_p, &op.scale_s, &op.scale_d_q, &op.scale_d_k, &op.scale_d_v, &op.scale_d_p})
    *id = f32(g, "");
  for (TensorId* id : {&op.d_q, &op.d_k, &op.d_v}) *id = g.add(samples::output(""));
  for (TensorId* id : {&op.amax_d_q, &op.amax_d_k, &op.amax_d_v, &op.amax_d_p})
    *id = g.add(samples::output("", DataType::f32));
  g.nodes.push_back({"backward", op});
  return g;
}

TEST(Fp8, OutputsAreInferred) {
  Graph forward = fp8(), backward = fp8_backward();
  ASSERT_TRUE(validate(forward).is_ok());
  ASSERT_TRUE(validate(backward).is_ok());
  const auto& op = std::get<SdpaFp8>(forward.nodes.back().op);
  EXPECT_EQ(forward[op.o].dims, (Dims{2, 8, 64, 32}));
  EXPECT_EQ(forward[op.stats].dims, (Dims{2, 8, 64, 1}));
  EXPECT_EQ(forward[op.amax_s].dims, (Dims{1, 1, 1, 1}));
  const auto& gradients = std::get<SdpaFp8Backward>(backward.nodes.back().op);
  EXPECT_EQ(backward[gradients.d_k].dims, (Dims{2, 2, 64, 32}));
  EXPECT_EQ(backward[gradients.amax_d_p].dims, (Dims{1, 1, 1, 1}));
}

#define FP8 std::get<SdpaFp8>(g.nodes.back().op)
#define FP8_BACKWARD std::get<SdpaFp8Backward>(g.nodes.back().op)

INSTANTIATE_TEST_SUITE_P(
    Fp8, Rule,
    testing::ValuesIn(std::vector<Broken>{
        Broken{"bf16 q", fp8, WHEN(g[FP8.q].dtype = DataType::bf16), IV,
               "has data type bf16, expected f8e4m3 or f8e5m2"},
        Broken{"bf16 v", fp8, WHEN(g[FP8.v].dtype = DataType::bf16), IV, "V of sdpa_fp8"},
        Broken{"no descale", fp8, WHEN(FP8.descale_v = kNone), ANS,
               "requires a tensor for descale_v"},
        Broken{"half of the weights' scales", fp8, WHEN(FP8.descale_s = kNone), ANS,
               "scale_s is set without descale_s"},
        Broken{"scale type", fp8, WHEN(g[FP8.scale_o].dtype = DataType::f16), IV,
               "scale_o of sdpa_fp8 'attention'"},
        Broken{"scale dims", fp8,
               WHEN(g[FP8.descale_q] = tensor("dq", {2, 1, 1, 1}, DataType::f32)), IV,
               "expected one element"},
        Broken{"amax type", fp8, WHEN(g[FP8.amax_o].dtype.reset()), IV,
               "has data type f8e4m3, expected f32"},
        Broken{"o type", fp8, WHEN(g[FP8.o].dtype = DataType::i8), IV, "has data type i8"},
        Broken{"stats type", fp8, WHEN(g[FP8.stats].dtype = DataType::f16), IV, "expected f32"},
        Broken{"bias", fp8,
               WHEN(FP8.attention.bias = g.add(tensor("bias", {1, 1, 64, 64}, DataType::f32))), NS,
               "a bias is given, expected none"},
        Broken{"sink", fp8, WHEN(FP8.attention.sink = f32(g, "sink")), NS, "a sink is given"},
        Broken{"dropout", fp8, WHEN(FP8.attention.dropout.probability = 0.1), NS,
               "dropout is given"},
        Broken{"log2", fp8, WHEN(FP8.attention.softmax_input_is_log2 = true), NS,
               "softmax_input_is_log2"},
        Broken{"heads", fp8, WHEN(g[FP8.k] = tensor("k", {2, 3, 64, 32})), NS,
               "number of heads for key and query"},
        Broken{"bf16 dO", fp8_backward, WHEN(g[FP8_BACKWARD.d_o].dtype = DataType::bf16), IV,
               "dO of sdpa_fp8_backward"},
        Broken{"no stats", fp8_backward, WHEN(FP8_BACKWARD.stats = kNone), ANS,
               "requires a tensor for Stats"},
        Broken{"no scale of dP", fp8_backward, WHEN(FP8_BACKWARD.scale_d_p = kNone), ANS,
               "requires a tensor for scale_dP"},
        Broken{"no gradients", fp8_backward,
               WHEN(FP8_BACKWARD.d_q = FP8_BACKWARD.d_k = FP8_BACKWARD.d_v = kNone), ANS,
               "None of dQ, dK and dV is wanted"},
        Broken{"amax of no gradient", fp8_backward, WHEN(FP8_BACKWARD.d_q = kNone), ANS,
               "Amax_dQ is wanted and its gradient is not"},
        Broken{"gradient dims", fp8_backward,
               WHEN(g[FP8_BACKWARD.d_k] = tensor("dk", {2, 8, 64, 32})), IV,
               "expected [2, 2, 64, 32]"}}));

}  // namespace
}  // namespace heddle::graph
