#include "graph/validate.h"

#include <gtest/gtest.h>

#include <cmath>

#include "graph/broken_graphs.h"
#include "graph/extents.h"
#include "graph/ports.h"

namespace heddle::graph {
namespace {

TEST(Validate, AcceptsEverySampleAndIsIdempotent) {
  for (Graph graph :
       {samples::sdpa(), samples::sdpa_backward(), samples::sdpa_backward_of_pair(),
        samples::sdpa_backward_of_stats(), samples::rope(), samples::rope_sdpa(),
        samples::pointwise(), samples::soft_cap(), samples::rms_norm(),
        samples::rms_norm_backward(), samples::layer_norm(), samples::layer_norm_backward(),
        samples::instance_norm(), samples::batch_norm(), samples::batch_norm_backward()}) {
    ASSERT_TRUE(validate(graph).is_ok()) << validate(graph).message();
    const Graph once = graph;
    ASSERT_TRUE(validate(graph).is_ok()) << validate(graph).message();
    EXPECT_EQ(graph, once);
  }
}

TEST(Validate, InfersOutputs) {
  Graph graph = samples::sdpa();
  ASSERT_TRUE(validate(graph).is_ok());
  const Sdpa& op = samples::sdpa_of(graph);
  EXPECT_EQ(graph[op.o].dims, (Dims{2, 8, 64, 32}));
  EXPECT_EQ(graph[op.o].strides, (Dims{8 * 64 * 32, 64 * 32, 32, 1}));
  EXPECT_EQ(graph[op.o].dtype, DataType::bf16);
  EXPECT_EQ(graph[op.stats].dims, (Dims{2, 8, 64, 1}));
  EXPECT_EQ(graph[op.stats].strides, (Dims{8 * 64, 64, 1, 1}));
}

TEST(Validate, RopeTakesItsInputsLayout) {
  Graph graph = samples::rope();
  graph[samples::rope_of(graph).x].strides = {64 * 3 * 8 * 32, 32, 3 * 8 * 32, 1};
  ASSERT_TRUE(validate(graph).is_ok());
  EXPECT_EQ(graph[samples::rope_of(graph).y].strides, (Dims{64 * 3 * 8 * 32, 32, 3 * 8 * 32, 1}));
  EXPECT_EQ(graph[samples::rope_of(graph).y].dims, (Dims{2, 8, 64, 32}));
}

TEST(Validate, GradientOfABroadcastInputIsDense) {
  Graph graph = samples::sdpa_backward();
  graph[samples::backward_of(graph).k].strides[1] = 0;
  ASSERT_TRUE(validate(graph).is_ok()) << validate(graph).message();
  EXPECT_EQ(graph[samples::backward_of(graph).d_k].strides, (Dims{2 * 64 * 32, 64 * 32, 32, 1}));
}

TEST(Validate, OrdersNodesAndAssignsUids) {
  Graph graph = samples::rope_sdpa();  // given with the ropes last
  graph.tensors[3].uid = 2;
  ASSERT_TRUE(validate(graph).is_ok()) << validate(graph).message();
  EXPECT_EQ(graph.nodes[0].name, "rope_q");
  EXPECT_EQ(graph.nodes[1].name, "rope_k");
  EXPECT_EQ(graph.nodes[2].name, "attention");
  EXPECT_EQ(graph.tensors[0].uid, 1);
  EXPECT_EQ(graph.tensors[1].uid, 3);
  std::vector<std::string> names;
  for (TensorId id : bound_inputs(graph)) names.push_back(graph[id].name);
  EXPECT_EQ(names, (std::vector<std::string>{"q", "k", "v", "freqs"}));
  names.clear();
  for (TensorId id : bound_outputs(graph)) names.push_back(graph[id].name);
  EXPECT_EQ(names, (std::vector<std::string>{"o", "stats"}));
}

TEST(Validate, ConstantsAreNotBoundAndRaggedOffsetsAre) {
  Graph graph = samples::soft_cap();
  Sdpa& op = samples::sdpa_of(graph);
  op.attention.padding_mask = true;
  op.attention.seq_len_q = op.attention.seq_len_kv =
      graph.add(tensor("lengths", {2, 1, 1, 1}, DataType::i32));
  graph[op.q].ragged_offset = graph.add(tensor("offsets", {3, 1, 1, 1}, DataType::i32));
  ASSERT_TRUE(validate(graph).is_ok()) << validate(graph).message();
  std::vector<std::string> names;
  for (TensorId id : bound_inputs(graph)) names.push_back(graph[id].name);
  EXPECT_EQ(names, (std::vector<std::string>{"q", "k", "v", "lengths", "offsets"}));
}

TEST(Validate, LeavesAFailedGraphUnchanged) {
  Graph graph = samples::sdpa();
  samples::sdpa_of(graph).attention.right_bound = -1;
  const Graph before = graph;
  ASSERT_FALSE(validate(graph).is_ok());
  EXPECT_EQ(graph, before);
}

// What Heddle takes beyond the incumbent.
TEST(Validate, LiftsTheIncumbentsRefusals) {
  Graph graph = samples::soft_cap();  // a score expression beside a bound, bottom right, with bias
                                      // and dropout
  Sdpa& op = samples::sdpa_of(graph);
  op.attention.diagonal_alignment = DiagonalAlignment::bottom_right;
  op.attention.bias = graph.add(tensor("bias", {1, 8, 1, 64}));
  op.attention.dropout.probability = 0.1;
  op.attention.dropout.seed = graph.add(tensor("seed", {1, 1, 1, 1}, DataType::i64));
  op.attention.dropout.offset = graph.add(tensor("offset", {1, 1, 1, 1}, DataType::i64));
  op.max = graph.add(samples::output("max", DataType::f32));
  EXPECT_TRUE(validate(graph).is_ok()) << validate(graph).message();

  Graph decode = samples::sdpa();
  Sdpa& single = samples::sdpa_of(decode);
  decode[single.q] = tensor("q", {2, 8, 1, 32});
  single.attention.sink = decode.add(tensor("sink", {1, 8, 1, 1}, DataType::f32));
  EXPECT_TRUE(validate(decode).is_ok()) << validate(decode).message();
}

TEST(Validate, UnequalKeyAndValueHeadsAndHeadDims) {
  Graph graph = samples::sdpa();
  graph[samples::sdpa_of(graph).v] = tensor("v", {2, 4, 64, 128});
  ASSERT_TRUE(validate(graph).is_ok()) << validate(graph).message();
  EXPECT_EQ(graph[samples::sdpa_of(graph).o].dims, (Dims{2, 8, 64, 128}));
}

TEST(Validate, PagedKeysAndValues) {
  Graph graph = samples::sdpa();
  Sdpa& op = samples::sdpa_of(graph);
  graph[op.k] = tensor("k", {100, 2, 16, 32});
  graph[op.v] = tensor("v", {50, 2, 32, 32});
  op.page_table_k = graph.add(tensor("table_k", {2, 1, 5, 1}, DataType::i32));
  op.page_table_v = graph.add(tensor("table_v", {2, 1, 2, 1}, DataType::i32));
  op.attention.padding_mask = true;
  op.attention.seq_len_q = op.attention.seq_len_kv =
      graph.add(tensor("lengths", {2, 1, 1, 1}, DataType::i32));
  ASSERT_TRUE(validate(graph).is_ok()) << validate(graph).message();
  EXPECT_EQ(graph::extents(graph, samples::sdpa_of(graph)).kv_length,
            64);  // the shorter table: 2 * 32
}

TEST_P(Rule, HasItsSentence) {
  Graph graph = GetParam().sample();
  GetParam().breaks(graph);
  const Status status = validate(graph);
  ASSERT_FALSE(status.is_ok());
  EXPECT_EQ(name(status.code()), name(GetParam().code)) << status.message();
  EXPECT_NE(status.message().find(GetParam().sentence), std::string::npos) << status.message();
}

INSTANTIATE_TEST_SUITE_P(
    Tensors, Rule,
    testing::ValuesIn(std::vector<Broken>{
        Broken{"no ops", sdpa, WHEN(g.nodes.clear()), IV, "has no ops"},
        Broken{"reference outside", sdpa, WHEN(SDPA.q = 99), IV, "refers to tensor number 99"},
        Broken{"negative reference", sdpa, WHEN(SDPA.q = -7), IV, "refers to tensor number -7"},
        Broken{"duplicate uid", sdpa, WHEN(g.tensors[0].uid = g.tensors[1].uid = 5), IV,
               "The uid 5 is given to two tensors, 'q' and 'k'"},
        Broken{"duplicate name", sdpa, WHEN(g.tensors[1].name = "q"), Code::invalid_tensor_name,
               "The name 'q' is given to two tensors"},
        Broken{"made twice", sdpa, WHEN(SDPA.stats = SDPA.o), IV, "is made twice"},
        Broken{"input as output", sdpa, WHEN(SDPA.o = SDPA.q), IV, "is both q and an output"},
        Broken{"circle", samples::rope_sdpa,
               WHEN(std::get<Rope>(g.nodes[1].op).x = std::get<Sdpa>(g.nodes[0].op).o), IV,
               "in a circle"},
        Broken{"virtual input", sdpa, WHEN(g.tensors[0].is_virtual = true), IV,
               "is virtual and no op makes it"},
        Broken{"constant output", sdpa, WHEN(g[SDPA.o].constant = 1), IV,
               "is a constant and cannot be o"},
        Broken{"no io type", sdpa, WHEN(g.io_dtype.reset()), ANS,
               "has no data type and the graph no io data type"},
        Broken{"no intermediate type", samples::rope_sdpa,
               WHEN(g.intermediate_dtype.reset(); g[std::get<Rope>(g.nodes[1].op).y].dtype.reset()),
               ANS, "Intermediate tensor data type needs to be set as internal tensors require it"},
        Broken{"no dims", sdpa, WHEN(g.tensors[0].dims = {}; g.tensors[0].strides = {}), ANS,
               "has no dims"},
        Broken{"zero dim", sdpa, WHEN(g.tensors[0].dims[2] = 0), IV,
               "has dims [2, 8, 0, 32], expected each from 1"},
        Broken{"negative dim", sdpa, WHEN(g.tensors[0].dims[0] = -2), IV,
               "has dims [-2, 8, 64, 32]"},
        Broken{"huge dim", sdpa, WHEN(g.tensors[0].dims[0] = INT64_MAX), IV,
               "expected each from 1 to 2147483647"},
        Broken{"product overflow", sdpa,
               WHEN(g.tensors[0].dims = {INT32_MAX, INT32_MAX, INT32_MAX, 32}), IV,
               "reaches beyond what 63 bits address"},
        Broken{"product overflow without strides", sdpa,
               WHEN(g.tensors[0].dims = {INT32_MAX, INT32_MAX, INT32_MAX, 32};
                    g.tensors[0].strides = {}),
               IV, "2147483647, 32], more elements than 63 bits count"},
        Broken{"overflow of a result", sdpa,
               WHEN(g[SDPA.q].dims = {1 << 20, 1, 1 << 20, 1}; g[SDPA.k].dims = {1 << 20, 1, 1, 1};
                    g[SDPA.v].dims = {1 << 20, 1, 1, 1 << 30};
                    g[SDPA.q].strides = g[SDPA.k].strides = g[SDPA.v].strides = {};
                    g[SDPA.o].dims = g[SDPA.o].strides = {}),
               IV, "1073741824], more elements than 63 bits count"},
        Broken{"stride overflow", sdpa, WHEN(g.tensors[0].strides[0] = INT64_MAX / 2), IV,
               "reaches beyond what 63 bits address"},
        Broken{"negative stride", sdpa, WHEN(g.tensors[0].strides[1] = -1), IV,
               "expected none to be negative"},
        Broken{"stride rank", sdpa, WHEN(g.tensors[0].strides = {1, 1}), ANS,
               "expected as many strides as dims"},
        Broken{"overlapping output", sdpa,
               WHEN(g[SDPA.o].dims = {2, 8, 64, 32}; g[SDPA.o].strides = {64 * 32, 64 * 32, 32, 1}),
               IV, "on top of each other"},
        Broken{"by value, not scalar", sdpa, WHEN(g.tensors[0].pass_by_value = true), IV,
               "is passed by value and has dims"},
        Broken{"constant beyond its type", samples::soft_cap,
               WHEN(for (Tensor& t
                         : g.tensors) if (t.constant) t.dtype = DataType::i32,
                    t.constant = 0x1p31),
               IV, "is the constant 2147483648, expected a number that i32 holds"},
        Broken{"constant that overflows", samples::soft_cap,
               WHEN(for (auto& t
                         : g.tensors) if (t.constant) t.constant = 1e300),
               IV, "is the constant 1e+300, expected a number that f32 holds"},
        Broken{"constant that vanishes", samples::soft_cap,
               WHEN(for (auto& t
                         : g.tensors) if (t.constant) t.constant = 1e-50),
               IV, "is the constant 1e-50, expected a number that f32 holds"},
        Broken{"no whole constant", samples::soft_cap,
               WHEN(for (Tensor& t
                         : g.tensors) if (t.constant) t.dtype = DataType::i64,
                    t.constant = std::nan("")),
               IV, "is the constant nan, expected a number that i64 holds"},
        Broken{"constant, virtual", samples::soft_cap,
               WHEN(for (Tensor& t
                         : g.tensors) if (t.constant) t.is_virtual = true),
               IV, "virtual"},
        Broken{"ragged shape", sdpa,
               WHEN(g.tensors[0].ragged_offset = g.add(tensor("r", {2, 1, 1, 1}, DataType::i32))),
               IV, "expected [3, 1, 1, 1]"},
        Broken{"ragged type", sdpa,
               WHEN(g.tensors[0].ragged_offset = g.add(tensor("r", {3, 1, 1, 1}, DataType::f32))),
               IV, "expected i32 or i64"},
        Broken{"ragged, virtual offset", sdpa,
               WHEN(g.tensors[0].ragged_offset = g.add(tensor("r", {3, 1, 1, 1}, DataType::i32));
                    g.tensors.back().is_virtual = true),
               IV, "is virtual, expected a dense tensor that is bound"},
        Broken{"ragged, ragged offset", sdpa,
               WHEN(g.tensors[0].ragged_offset = g.add(tensor("r", {3, 1, 1, 1}, DataType::i32));
                    g.tensors.back().ragged_offset = 1),
               IV, "has a ragged offset itself"},
        Broken{"ragged multiplier", sdpa,
               WHEN(g.tensors[0].ragged_offset = g.add(tensor("r", {3, 1, 1, 1}, DataType::i32));
                    g.tensors[0].ragged_offset_multiplier = 0),
               IV, "ragged offset multiplier of tensor 'q' (uid 1) is 0"},
        Broken{"ragged outside", sdpa, WHEN(g.tensors[0].ragged_offset = 1000), IV,
               "refers to tensor number 1000"}}));

}  // namespace
}  // namespace heddle::graph
