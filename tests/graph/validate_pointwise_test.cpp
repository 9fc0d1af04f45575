// The rules of pointwise ops standing alone, and what they infer.
#include <cmath>

#include "graph/broken_graphs.h"

namespace heddle::graph {
namespace {

#define POINTWISE(n) samples::pointwise_of(g, n)

INSTANTIATE_TEST_SUITE_P(
    Pointwise, Rule,
    testing::ValuesIn(std::vector<Broken>{
        Broken{"no input", samples::pointwise, WHEN(POINTWISE(0).b = kNone), ANS,
               "add lacks its input B"},
        Broken{"an input too many", samples::pointwise, WHEN(POINTWISE(0).c = POINTWISE(0).a), IV,
               "add has an input C, expected 2 inputs"},
        Broken{"an input of an index too many", samples::pointwise,
               WHEN(POINTWISE(1).b = POINTWISE(0).a), IV, "gen_index has an input B"},
        Broken{"no output", samples::pointwise, WHEN(POINTWISE(2).y = kNone), ANS,
               "requires a tensor for Y"},
        Broken{"dims", samples::pointwise, WHEN(g.tensors[1] = tensor("bias", {1, 7, 1, 32})), IV,
               "an input of dims [1, 7, 1, 32] beside one of dims [2, 8, 64, 32]"},
        Broken{"ranks", samples::pointwise, WHEN(g.tensors[1] = tensor("bias", {8, 1, 32})), IV,
               "expected as many dims, each the same or 1"},
        Broken{"rank 5", samples::pointwise,
               WHEN(g.tensors[0] = tensor("x", {2, 2, 4, 64, 32});
                    g.tensors[1] = tensor("bias", {1, 1, 1, 1})),
               NS, "has dims [2, 2, 4, 64, 32], expected a rank of at most 4"},
        Broken{"y dims", samples::pointwise, WHEN(g[POINTWISE(2).y].dims = {2, 8, 64, 1}), IV,
               "expected [2, 8, 64, 32]"},
        Broken{"y on top of itself", samples::pointwise,
               WHEN(g[POINTWISE(2).y].dims = {2, 8, 64, 32};
                    g[POINTWISE(2).y].strides = {0, 2048, 32, 1}),
               IV, "on top of each other"},
        Broken{"f64", samples::pointwise, WHEN(g.tensors[0].dtype = DataType::f64), IV,
               "has data type f64, expected f32, f16, bf16, i32 or boolean"},
        Broken{"i64", samples::pointwise, WHEN(g[POINTWISE(2).y].dtype = DataType::i64), IV,
               "has data type i64"},
        Broken{"i32 of fractions", samples::pointwise,
               WHEN(g[POINTWISE(0).y].dtype = DataType::i32), IV,
               "what add makes of these inputs need not be whole"},
        Broken{
            "i32 of a quotient", samples::pointwise,
            WHEN(g.tensors[0].dtype = g.tensors[1].dtype = DataType::i32;
                 POINTWISE(0).mode = PointwiseMode::div; g[POINTWISE(0).y].dtype = DataType::i32),
            IV, "what div makes of these inputs need not be whole"},
        Broken{"boolean of numbers", samples::pointwise,
               WHEN(g[POINTWISE(1).y].dtype = DataType::boolean), IV,
               "has data type boolean, expected another: gen_index makes numbers"},
        Broken{"axis", samples::pointwise, WHEN(POINTWISE(1).axis = 4), IV,
               "gen_index has axis 4, expected 0 to 3"},
        Broken{"negative axis", samples::pointwise, WHEN(POINTWISE(1).axis = -1), IV,
               "gen_index has axis -1"},
        Broken{"axis of another", samples::pointwise, WHEN(POINTWISE(0).axis = 2), IV,
               "add has axis 2, expected none"},
        Broken{"index without dims", samples::pointwise, WHEN(POINTWISE(1).a = kNone), ANS,
               "gen_index has neither an input nor a Y with dims"},
        Broken{"ragged", samples::pointwise,
               WHEN(g[POINTWISE(0).a].ragged_offset = g.add(tensor("offsets", {3, 1, 1, 1},
                                                                   DataType::i32))),
               NS, "has a ragged offset, expected a dense tensor"},
        Broken{"a number of another mode", samples::pointwise,
               WHEN(POINTWISE(0).numbers.swish_beta = 1), IV,
               "add has a swish_beta, expected none: only swish_fwd and swish_bwd have one"},
        Broken{"a number of another activation", samples::relu,
               WHEN(POINTWISE(0).numbers.elu_alpha = 1), IV, "relu_fwd has a elu_alpha"},
        Broken{"clips the wrong way round", samples::relu,
               WHEN(POINTWISE(0).numbers.relu_upper_clip = -2), IV,
               "a relu_upper_clip of -2 below its relu_lower_clip of -1"},
        Broken{"a clip of NaN", samples::relu, WHEN(POINTWISE(0).numbers.relu_lower_clip = NAN), IV,
               "a relu_lower_clip of nan, expected a finite number of f32"},
        Broken{"a slope beyond f32", samples::relu,
               WHEN(POINTWISE(0).numbers.relu_lower_clip_slope = 1e39), IV,
               "a relu_lower_clip_slope of 1e+39, expected a finite number of f32"},
        Broken{"a quotient by 0", samples::relu,
               WHEN(POINTWISE(0).numbers = {.softplus_beta = 0};
                    POINTWISE(0).mode = PointwiseMode::softplus_fwd),
               IV, "a softplus_beta of 0, expected 2^-126 or more in magnitude"},
        Broken{"a gradient alone", samples::relu, WHEN(POINTWISE(0).mode = PointwiseMode::relu_bwd),
               ANS, "relu_bwd lacks its input B"},
        Broken{"in a score expression", samples::swish_scores,
               WHEN(samples::sdpa_of(g).attention.score_mod->ops[0].mode = PointwiseMode::gelu_fwd),
               IV, "gelu_fwd has a swish_beta, expected none"},
        Broken{"read before it is made", samples::pointwise, WHEN(POINTWISE(0).a = POINTWISE(2).y),
               IV, "depend on each other in a circle"}}));

TEST(ValidatePointwise, NothingReadsAValueInsideAScoreExpression) {
  Graph graph = samples::soft_cap();
  const TensorId inside = samples::sdpa_of(graph).attention.score_mod->score_in;
  const TensorId y = graph.add(samples::output("y"));
  graph.nodes.push_back({"read", PointwiseNode{.mode = PointwiseMode::neg, .a = inside, .y = y}});
  const Status status = validate(graph);
  EXPECT_EQ(status.code(), Code::invalid_value);
  EXPECT_NE(status.message().find("is a value inside the score expression of another op"),
            std::string::npos)
      << status.message();
}

TEST(ValidatePointwise, AResultHasTheLayoutOfAnInputOfItsDims) {
  Graph graph = samples::pointwise();
  graph.tensors[0].strides = {8 * 64 * 32, 32, 8 * 32, 1};
  ASSERT_TRUE(validate(graph).is_ok()) << validate(graph).message();
  const PointwiseNode& add = samples::pointwise_of(graph, 0);
  EXPECT_EQ(graph[add.y].dims, (Dims{2, 8, 64, 32}));
  EXPECT_EQ(graph[add.y].strides, (Dims{8 * 64 * 32, 32, 8 * 32, 1}));
}

TEST(ValidatePointwise, ANumberOfAnyRankIsBroadcast) {
  Graph graph = samples::pointwise();
  graph.tensors[0] = samples::tensor("x", {64, 32});
  graph.tensors[1] = samples::tensor("bias", {1, 1, 1, 1});
  graph.tensors[2] = samples::tensor("mask", {64, 1}, DataType::boolean);
  samples::pointwise_of(graph, 1).axis = 1;
  ASSERT_TRUE(validate(graph).is_ok()) << validate(graph).message();
  EXPECT_EQ(graph[samples::pointwise_of(graph, 2).y].dims, (Dims{64, 32}));
}

TEST(ValidatePointwise, WholeNumbersOfWholeNumbers) {
  for (const PointwiseMode mode : {PointwiseMode::add, PointwiseMode::mod, PointwiseMode::cmp_lt}) {
    Graph graph = samples::pointwise();
    graph.tensors[0].dtype = graph.tensors[1].dtype = DataType::i32;
    samples::pointwise_of(graph, 0).mode = mode;
    graph[samples::pointwise_of(graph, 0).y].dtype = DataType::i32;
    EXPECT_TRUE(validate(graph).is_ok()) << validate(graph).message();
  }
}

}  // namespace
}  // namespace heddle::graph
