#include "graph/validate.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>

#include "graph/extents.h"
#include "graph/ports.h"
#include "graph/samples.h"

namespace heddle::graph {
namespace {

using samples::tensor;

TEST(Validate, AcceptsEverySampleAndIsIdempotent) {
  for (Graph graph :
       {samples::sdpa(), samples::sdpa_backward(), samples::rope(), samples::rope_sdpa(),
        samples::soft_cap(), samples::rms_norm(), samples::rms_norm_backward()}) {
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

struct Broken {
  const char* what;
  Graph (*sample)();
  std::function<void(Graph&)> breaks;
  Code code;
  const char* sentence;
};

void PrintTo(const Broken& broken, std::ostream* out) { *out << broken.what; }

class Rule : public testing::TestWithParam<Broken> {};

TEST_P(Rule, HasItsSentence) {
  Graph graph = GetParam().sample();
  GetParam().breaks(graph);
  const Status status = validate(graph);
  ASSERT_FALSE(status.is_ok());
  EXPECT_EQ(name(status.code()), name(GetParam().code)) << status.message();
  EXPECT_NE(status.message().find(GetParam().sentence), std::string::npos) << status.message();
}

AttentionAttributes& attention(Graph& graph) {
  if (Sdpa* op = std::get_if<Sdpa>(&graph.nodes.back().op)) return op->attention;
  return samples::backward_of(graph).attention;
}
TensorId scalar(Graph& g, const char* name, DataType type) {
  return g.add(tensor(name, {1, 1, 1, 1}, type));
}
void give_lengths(Graph& g) {
  attention(g).seq_len_q = attention(g).seq_len_kv =
      g.add(tensor("lengths", {2, 1, 1, 1}, DataType::i32));
}
void give_dropout(Graph& g, double p) {
  attention(g).dropout.probability = p;
  attention(g).dropout.seed = scalar(g, "seed", DataType::i64);
  attention(g).dropout.offset = scalar(g, "offset", DataType::i64);
}

constexpr auto ANS = Code::attribute_not_set;
constexpr auto NS = Code::graph_not_supported;
constexpr auto IV = Code::invalid_value;
using samples::sdpa;
using samples::sdpa_backward;
#define SDPA samples::sdpa_of(g)
#define BACKWARD samples::backward_of(g)
#define ROPE samples::rope_of(g)
#define NORM std::get<RmsNorm>(g.nodes.back().op)
#define WHEN(...) [](Graph& g) { __VA_ARGS__; }

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
        Broken{"ragged multiplier", sdpa,
               WHEN(g.tensors[0].ragged_offset = g.add(tensor("r", {3, 1, 1, 1}, DataType::i32));
                    g.tensors[0].ragged_offset_multiplier = 0),
               IV, "ragged offset multiplier of tensor 'q' (uid 1) is 0"},
        Broken{"ragged outside", sdpa, WHEN(g.tensors[0].ragged_offset = 1000), IV,
               "refers to tensor number 1000"}}));

INSTANTIATE_TEST_SUITE_P(
    Attention, Rule,
    testing::ValuesIn(std::vector<Broken>{
        Broken{"no q", sdpa, WHEN(SDPA.q = kNone), ANS, "requires a tensor for Q"},
        Broken{"no o", sdpa, WHEN(SDPA.o = kNone), ANS, "requires a tensor for O"},
        Broken{"rank", sdpa, WHEN(g.tensors[0] = tensor("q", {2, 8, 64})), ANS,
               "The dim for Q is invalid"},
        Broken{"o rank", sdpa, WHEN(g[SDPA.o].dims = {2, 8, 64}), ANS, "The dim for O is invalid"},
        Broken{"last stride", sdpa, WHEN(g.tensors[1].strides = {8192, 4096, 1, 64}), NS,
               "The stride for the last dimension corresponding to the embedding size per head "
               "should be 1 for K"},
        Broken{"heads", sdpa, WHEN(g.tensors[2] = tensor("v", {2, 3, 64, 32})), NS,
               "For group-query attention, number of heads for key and query must be a factor of "
               "number of heads for query"},
        Broken{"head dim", sdpa,
               WHEN(g.tensors[0] = tensor("q", {2, 8, 64, 20});
                    g.tensors[1] = tensor("k", {2, 2, 64, 20})),
               NS, "hidden_dim should be multiple of 8"},
        Broken{"head dims differ", sdpa, WHEN(g.tensors[1] = tensor("k", {2, 2, 64, 64})), IV,
               "Q has head dim 32 and K 64"},
        Broken{"batch", sdpa, WHEN(g.tensors[1] = tensor("k", {1, 2, 64, 32})), IV,
               "expected the same batch"},
        Broken{"kv length", sdpa, WHEN(g.tensors[1] = tensor("k", {2, 2, 65, 32})), IV,
               "expected the same sequence length"},
        Broken{"types differ", sdpa, WHEN(g.tensors[2].dtype = DataType::f16), IV,
               "has data type f16, expected bf16"},
        Broken{"integer q", sdpa, WHEN(g.tensors[0].dtype = DataType::i32), IV,
               "has data type i32, expected f16, bf16, f32 or f64"},
        Broken{"fp8 q", sdpa, WHEN(g.tensors[0].dtype = DataType::f8e4m3), IV,
               "has data type f8e4m3"},
        Broken{"o dims", sdpa, WHEN(g[SDPA.o].dims = {2, 8, 64, 64}), IV,
               "expected [2, 8, 64, 32]"},
        Broken{
            "stats type", sdpa, WHEN(g[SDPA.stats].dtype.reset()), IV,
            "Stats of sdpa 'attention', tensor 'stats' (uid 5), has data type bf16, expected f32"},
        Broken{"stats dims", sdpa, WHEN(g[SDPA.stats].dims = {2, 8, 64, 2}), IV,
               "expected [2, 8, 64, 1]"},
        Broken{"log2 without stats", sdpa, WHEN(SDPA.stats = kNone; SDPA.stats_use_log2 = true),
               ANS, "stats_use_log2"},
        Broken{"two scales", sdpa,
               WHEN(attention(g).attn_scale_tensor = scalar(g, "s", DataType::f32)), ANS,
               "attn_scale with tensor and value cannot be set at the same time."},
        Broken{"infinite scale", sdpa,
               WHEN(attention(g).attn_scale = std::numeric_limits<double>::infinity()), IV,
               "attn_scale is inf"},
        Broken{"boolean bias", sdpa,
               WHEN(attention(g).bias = g.add(tensor("bias", {1, 1, 64, 64}, DataType::boolean))),
               NS, "Bias mask data type cannot be boolean"},
        Broken{"bias dims", sdpa, WHEN(attention(g).bias = g.add(tensor("bias", {2, 2, 64, 64}))),
               IV, "expected [2, 8, 64, 64] where dims of 1 broadcast"},
        Broken{"padding without lengths", sdpa, WHEN(attention(g).padding_mask = true), ANS,
               "Padding mask requires seq_len_q and seq_len_kv to be set"},
        Broken{"lengths without padding", sdpa, WHEN(give_lengths(g)), ANS,
               "seq_len_q and seq_len_kv needs to be set only if padding mask is enabled."},
        Broken{"length dims", sdpa,
               WHEN(give_lengths(g); attention(g).padding_mask = true;
                    g[attention(g).seq_len_q].dims = {1, 2, 1, 1}),
               IV, "expected [2, 1, 1, 1]"},
        Broken{"length type", sdpa,
               WHEN(give_lengths(g); attention(g).padding_mask = true;
                    g[attention(g).seq_len_q].dtype = DataType::f32),
               IV, "expected i32 or i64"},
        Broken{"both forms of lengths", sdpa,
               WHEN(give_lengths(g); attention(g).padding_mask = true;
                    attention(g).cu_seq_len_q = attention(g).seq_len_q),
               IV, "seq_len_q and cu_seq_len_q are both set"},
        Broken{"cumulative dims", sdpa,
               WHEN(give_lengths(g); attention(g).padding_mask = true;
                    std::swap(attention(g).cu_seq_len_q, attention(g).seq_len_q)),
               IV, "expected [3, 1, 1, 1]"},
        Broken{"ragged without padding", sdpa,
               WHEN(g.tensors[0].ragged_offset = g.add(tensor("r", {3, 1, 1, 1}, DataType::i32))),
               NS, "Ragged offsets are only supported with padding mask."},
        Broken{"totals without packing", sdpa, WHEN(attention(g).max_total_seq_len_q = 5), NS,
               "max_total_seq_len_q is only supported with packed layout"},
        Broken{"right bound", sdpa, WHEN(attention(g).right_bound = -1), IV,
               "Right bound needs to be larger than or equal to zero"},
        Broken{"left bound", sdpa, WHEN(attention(g).left_bound = 0), IV,
               "Left bound (Sliding window length) should be greater than zero when set"},
        Broken{"bottom right, long q", sdpa,
               WHEN(g.tensors[0] = tensor("q", {2, 8, 65, 32});
                    attention(g).diagonal_alignment = DiagonalAlignment::bottom_right),
               NS, "Bottom right causal mask does not support max_s_q > max_s_kv."},
        Broken{"window, long q", sdpa,
               WHEN(g.tensors[0] = tensor("q", {2, 8, 65, 32}); attention(g).left_bound = 3), NS,
               "Sliding window attention is only supported with max_s_q <= max_s_kv."},
        Broken{"alibi", sdpa,
               WHEN(attention(g).alibi_mask = true; attention(g).right_bound.reset()), NS,
               "When alibi mask is used, diagonal_band_right_bound needs to be set to 0."},
        Broken{"block mask type", sdpa,
               WHEN(attention(g).block_mask = g.add(tensor("m", {2, 8, 1, 1}, DataType::i32))), IV,
               "expected u8"},
        Broken{"block mask dims", sdpa,
               WHEN(attention(g).block_mask = g.add(tensor("m", {2, 8, 64, 1}, DataType::u8))), IV,
               "expected [2, 8, 1, 1]"},
        Broken{"sink dims", sdpa,
               WHEN(attention(g).sink = g.add(tensor("sink", {8, 1, 1, 1}, DataType::f32))), IV,
               "expected [1, 8, 1, 1]"},
        Broken{"prefolded with scale", sdpa, WHEN(SDPA.attn_scale_prefolded = true), IV,
               "attn_scale_prefolded is set and so is attn_scale"},
        Broken{"log2 with score_mod", samples::soft_cap,
               WHEN(attention(g).softmax_input_is_log2 = true), NS,
               "score_mod and softmax_input_is_log2"}}));

INSTANTIATE_TEST_SUITE_P(
    Pages, Rule,
    testing::ValuesIn(std::vector<Broken>{
        Broken{"max length, not paged", sdpa, WHEN(SDPA.paged_max_seq_len_kv = 64), NS,
               "When not using paged attention, there is no need to explicitly set max kv sequence "
               "length."},
        Broken{"no lengths", sdpa,
               WHEN(SDPA.page_table_k = g.add(tensor("t", {2, 1, 4, 1}, DataType::i32))), NS,
               "Paged caches can only be used in combination with padding mask"},
        Broken{"block size", sdpa,
               WHEN(give_lengths(g); attention(g).padding_mask = true;
                    g.tensors[1] = tensor("k", {9, 2, 12, 32});
                    SDPA.page_table_k = g.add(tensor("t", {2, 1, 6, 1}, DataType::i32))),
               IV, "have 12 rows, expected a power of 2"},
        Broken{"table dims", sdpa,
               WHEN(give_lengths(g); attention(g).padding_mask = true;
                    g.tensors[1] = tensor("k", {9, 2, 16, 32});
                    SDPA.page_table_k = g.add(tensor("t", {2, 1, 3, 1}, DataType::i32))),
               IV, "expected [2, 1, 4, 1]"},
        Broken{"table type", sdpa,
               WHEN(give_lengths(g); attention(g).padding_mask = true;
                    g.tensors[1] = tensor("k", {9, 2, 16, 32});
                    SDPA.page_table_k = g.add(tensor("t", {2, 1, 4, 1}, DataType::i64))),
               IV, "expected i32"}}));

INSTANTIATE_TEST_SUITE_P(
    Dropout, Rule,
    testing::ValuesIn(std::vector<Broken>{
        Broken{"p = 1", sdpa, WHEN(give_dropout(g, 1)), ANS, "Dropout probability cannot be 1"},
        Broken{"p < 0", sdpa, WHEN(give_dropout(g, -0.1)), IV,
               "is -0.1, expected at least 0 and less than 1"},
        Broken{"p nan", sdpa, WHEN(give_dropout(g, std::nan(""))), IV, "expected at least 0"},
        Broken{"both", sdpa,
               WHEN(give_dropout(g, 0.1);
                    attention(g).dropout.mask = g.add(tensor("m", {1, 1, 64, 64}))),
               ANS, "Using both, custom dropout mask and"},
        Broken{"no seed", sdpa, WHEN(attention(g).dropout.probability = 0.1), ANS,
               "requires a tensor for the dropout seed"},
        Broken{"no offset", sdpa, WHEN(give_dropout(g, 0.1); attention(g).dropout.offset = kNone),
               ANS, "requires a tensor for the dropout offset"},
        Broken{"no p", sdpa, WHEN(give_dropout(g, 0.1); attention(g).dropout.probability.reset()),
               ANS, "probability is not set"},
        Broken{"seed type", sdpa,
               WHEN(give_dropout(g, 0.1); g[attention(g).dropout.seed].dtype = DataType::f32), IV,
               "expected i32 or i64"},
        Broken{"mask dims", sdpa,
               WHEN(attention(g).dropout.mask = g.add(tensor("m", {1, 1, 64, 63}));
                    attention(g).dropout.scale = scalar(g, "s", DataType::f32)),
               IV, "dropout mask"},
        Broken{"mask without scale", sdpa,
               WHEN(attention(g).dropout.mask = g.add(tensor("m", {1, 1, 64, 64}))), ANS,
               "requires a tensor for the dropout scale"},
        Broken{"dump without dropout", sdpa,
               WHEN(attention(g).dropout.rng_dump = g.add(samples::output("d", DataType::f32))),
               ANS, "rng_dump is set without dropout"},
        Broken{
            "dump type", sdpa,
            WHEN(give_dropout(g, 0.1); attention(g).dropout.rng_dump = g.add(samples::output("d"))),
            IV, "expected f32"},
        Broken{"threefry strides", sdpa,
               WHEN(attention(g).dropout = {0.1, g.add(tensor("key", {2}, DataType::u32))};
                    attention(g).dropout.threefry = true),
               IV, "threefry_strides is []"},
        Broken{"threefry streams", sdpa,
               WHEN(attention(g).dropout = {0.1, g.add(tensor("key", {2}, DataType::u32))};
                    attention(g).dropout.threefry = true;
                    attention(g).dropout.streams = g.add(tensor("n", {1, 1, 1, 1}, DataType::i32))),
               IV, "numbers no streams"},
        Broken{"dropout streams", sdpa,
               WHEN(give_dropout(g, 0.1);
                    attention(g).dropout.streams = g.add(tensor("n", {2, 3, 1, 1}, DataType::i32))),
               IV, "dropout streams"},
        Broken{"type of dropout streams", sdpa,
               WHEN(give_dropout(g, 0.1);
                    attention(g).dropout.streams = g.add(tensor("n", {2, 4, 1, 1}, DataType::i64))),
               IV, "expected i32"},
        Broken{"threefry key", sdpa,
               WHEN(attention(g).dropout = {0.1, g.add(tensor("key", {4}, DataType::u32))};
                    attention(g).dropout.threefry = true),
               IV, "two words of a Threefry key"}}));

INSTANTIATE_TEST_SUITE_P(
    ScoreModifiers, Rule,
    testing::ValuesIn(std::vector<Broken>{
        Broken{"arity", samples::soft_cap, WHEN(attention(g).score_mod->ops[0].inputs.pop_back()),
               IV, "div has 1 inputs, expected 2"},
        Broken{"order", samples::soft_cap,
               WHEN(std::swap(attention(g).score_mod->ops[0], attention(g).score_mod->ops[2])), IV,
               "before it is made"},
        Broken{"result", samples::soft_cap, WHEN(attention(g).score_mod->score_out = SDPA.q), IV,
               "is made by none of its ops"},
        Broken{"shape", samples::soft_cap, WHEN(attention(g).score_mod->ops[0].inputs[1] = SDPA.k),
               IV, "expected [2, 8, 64, 64] where dims of 1 broadcast"},
        Broken{"axis", samples::soft_cap,
               WHEN(auto& op = attention(g).score_mod->ops[1]; op.mode = PointwiseMode::gen_index;
                    op.inputs.clear(); op.axis = 4),
               IV, "gen_index has axis 4"},
        Broken{"not virtual", samples::soft_cap,
               WHEN(g[attention(g).score_mod->score_out].is_virtual = false), IV,
               "must be virtual"},
        Broken{"no result", samples::soft_cap, WHEN(attention(g).score_mod->score_out = kNone), ANS,
               "has no result"},
        Broken{"bprop alone", sdpa_backward, WHEN(BACKWARD.score_mod_bprop = ScoreModifier{}), ANS,
               "score_mod_bprop is set without the score_mod"}}));

INSTANTIATE_TEST_SUITE_P(
    Backward, Rule,
    testing::ValuesIn(std::vector<Broken>{
        Broken{"no stats", sdpa_backward, WHEN(BACKWARD.stats = kNone), ANS,
               "requires a tensor for Stats"},
        Broken{"no dO", sdpa_backward, WHEN(BACKWARD.d_o = kNone), ANS, "requires a tensor for dO"},
        Broken{"nothing wanted", sdpa_backward,
               WHEN(BACKWARD.d_q = BACKWARD.d_k = BACKWARD.d_v = kNone), ANS,
               "expected at least one"},
        Broken{"dQ dims", sdpa_backward, WHEN(g[BACKWARD.d_q].dims = {2, 2, 64, 32}), IV,
               "dQ of sdpa_backward 'attention_backward', tensor 'd_q' (uid 7), has dims [2, 2, "
               "64, 32], expected [2, 8, 64, 32]"},
        Broken{"dK dims", sdpa_backward, WHEN(g[BACKWARD.d_k].dims = {2, 8, 64, 32}), IV,
               "expected [2, 2, 64, 32]"},
        Broken{"dV type", sdpa_backward, WHEN(g[BACKWARD.d_v].dtype = DataType::f16), IV,
               "expected bf16 or f32"},
        Broken{"dBias without bias", sdpa_backward,
               WHEN(BACKWARD.d_bias = g.add(samples::output("db"))), ANS,
               "dBias is set without a bias"},
        Broken{"dBias dims", sdpa_backward,
               WHEN(attention(g).bias = g.add(tensor("b", {1, 8, 64, 64}));
                    BACKWARD.d_bias = g.add(tensor("db", {2, 8, 64, 64}))),
               IV, "expected [1, 8, 64, 64]"},
        Broken{"dSink without sink", sdpa_backward,
               WHEN(BACKWARD.d_sink = g.add(samples::output("ds", DataType::f32))), ANS,
               "If dsink is set, sink also needs to be set."},
        Broken{"stats dims", sdpa_backward,
               WHEN(g[BACKWARD.stats] = tensor("stats", {2, 8, 64, 32}, DataType::f32)), IV,
               "expected [2, 8, 64, 1]"}}));

INSTANTIATE_TEST_SUITE_P(
    Ropes, Rule,
    testing::ValuesIn(std::vector<Broken>{
        Broken{"no input", samples::rope, WHEN(ROPE.x = kNone), ANS,
               "RoPE node requires INPUT tensor."},
        Broken{"no freqs", samples::rope, WHEN(ROPE.freqs = kNone), ANS,
               "RoPE node requires FREQS tensor."},
        Broken{"no dY", samples::rope, WHEN(ROPE.backward = true; ROPE.x = kNone), ANS,
               "RoPE backward node requires DY (input gradient) tensor."},
        Broken{"backward, no freqs", samples::rope, WHEN(ROPE.backward = true; ROPE.freqs = kNone),
               ANS, "RoPE backward node requires FREQS tensor."},
        Broken{"rank", samples::rope, WHEN(g.tensors[0] = tensor("x", {8, 64, 32})), ANS,
               "The dim for INPUT is invalid"},
        Broken{"x type", samples::rope, WHEN(g.tensors[0].dtype = DataType::i32), IV,
               "has data type i32"},
        Broken{"freqs type", samples::rope, WHEN(g.tensors[1].dtype = DataType::bf16), IV,
               "has data type bf16, expected f32"},
        Broken{"last stride", samples::rope,
               WHEN(g.tensors[0].strides = {8 * 64 * 32, 64 * 32, 1, 64}), NS,
               "should be 1 for INPUT"},
        Broken{"odd D", samples::rope, WHEN(g.tensors[0] = tensor("x", {2, 8, 64, 33})), IV,
               "has head dim 33, expected an even one"},
        Broken{"odd rope_dim", samples::rope, WHEN(ROPE.rope_dim = 3), IV,
               "rope_dim is 3, expected an even number"},
        Broken{"negative rope_dim", samples::rope, WHEN(ROPE.rope_dim = -2), IV, "rope_dim is -2"},
        Broken{"large rope_dim", samples::rope, WHEN(ROPE.rope_dim = 34), IV, "rope_dim is 34"},
        Broken{"freqs of D columns", samples::rope,
               WHEN(g.tensors[1] = tensor("freqs", {64, 1, 1, 32}, DataType::f32)), IV,
               "expected [Sf, 1, 1, 16]: its last dim is D = 32, where rope_dim = 16 calls for 16"},
        Broken{"short freqs", samples::rope,
               WHEN(g.tensors[1] = tensor("freqs", {63, 1, 1, 16}, DataType::f32)), IV,
               "has 63 rows, expected at least 64"},
        Broken{"scale", samples::rope, WHEN(ROPE.output_scale = std::nan("")), IV,
               "output_scale is nan"},
        Broken{"y dims", samples::rope, WHEN(g[ROPE.y].dims = {2, 8, 64, 16}), IV,
               "expected [2, 8, 64, 32]"},
        Broken{"angles and tables", samples::rope,
               WHEN(ROPE.cosines = g.add(tensor("c", {64, 1, 1, 8}, DataType::f32))), IV,
               "both set"},
        Broken{"cosines alone", samples::rope,
               WHEN(ROPE.freqs = kNone;
                    ROPE.cosines = g.add(tensor("c", {64, 1, 1, 8}, DataType::f32))),
               ANS, "cosines are set without sines"},
        Broken{"positions", samples::rope,
               WHEN(ROPE.positions = g.add(tensor("p", {2, 8, 64, 1}, DataType::i32))), IV,
               "positions"}}));

INSTANTIATE_TEST_SUITE_P(
    Norms, Rule,
    testing::ValuesIn(std::vector<Broken>{
        Broken{"no epsilon", samples::rms_norm, WHEN(NORM.epsilon = kNone), ANS,
               "requires a tensor for epsilon"},
        Broken{"negative epsilon", samples::rms_norm, WHEN(g[NORM.epsilon].constant = -1), IV,
               "epsilon is -1"},
        Broken{"scale dims", samples::rms_norm,
               WHEN(g.tensors[1] = tensor("w", {1, 511, 1, 1}, DataType::f32)), IV,
               "expected each to be 1 or that of X"},
        Broken{"scale rank", samples::rms_norm,
               WHEN(g.tensors[1] = tensor("w", {512}, DataType::f32)), IV,
               "expected each to be 1 or that of X"},
        Broken{"nothing normalised", samples::rms_norm,
               WHEN(g.tensors[1] = tensor("w", {1, 1, 1, 1}, DataType::f32)), IV,
               "normalise none of X"},
        Broken{"statistic type", samples::rms_norm,
               WHEN(g[NORM.inv_variance].dtype = DataType::bf16), IV, "expected f32"},
        Broken{"statistic dims", samples::rms_norm,
               WHEN(g[NORM.inv_variance].dims = {128, 512, 1, 1}), IV, "expected [128, 1, 1, 1]"},
        Broken{"backward, no statistic", samples::rms_norm_backward,
               WHEN(std::get<RmsNormBackward>(g.nodes[0].op).inv_variance = kNone), ANS,
               "requires a tensor for inv_variance"}}));

}  // namespace
}  // namespace heddle::graph
