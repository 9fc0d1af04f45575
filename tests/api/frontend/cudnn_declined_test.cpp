// Ops and tensors that no graph of Heddle's has: programs with them compile, as those for cuDNN's
// frontend spell them, and are declined by name.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <sstream>
#include <tuple>

#include "heddle/cudnn_frontend.h"

namespace fe = cudnn_frontend;

namespace {

using fe::graph::Graph;
using fe::graph::Tensor;

Tensor made(Graph& graph, const char* name = "x") {
  return graph.tensor(
      fe::graph::Tensor_attributes().set_name(name).set_dim({4, 8, 1, 1}).set_stride({8, 1, 8, 8}));
}

/// An op by its name, the call that makes it, and how many of its results there are.
struct Op {
  const char* name;
  std::function<std::vector<Tensor>(Graph&)> make;
  size_t count;
};
std::ostream& operator<<(std::ostream& out, const Op& op) { return out << op.name; }

template <size_t count>
std::vector<Tensor> listed(const std::array<Tensor, count>& tensors) {
  return {tensors.begin(), tensors.end()};
}

std::vector<Op> ops() {
  using namespace fe::graph;
  return {
      {"matmul",
       [](Graph& g) {
         return std::vector{g.matmul(
             made(g, "A"), made(g, "B"),
             Matmul_attributes().set_name("GEMM").set_compute_data_type(fe::DataType_t::FLOAT))};
       },
       1},
      {"moe_grouped_matmul",
       [](Graph& g) {
         return std::vector{g.moe_grouped_matmul(
             made(g), made(g), made(g), nullptr, nullptr,
             Moe_grouped_matmul_attributes().set_mode(fe::MoeGroupedMatmulMode_t::NONE))};
       },
       1},
      {"reduction",
       [](Graph& g) {
         return std::vector{
             g.reduction(made(g), Reduction_attributes().set_mode(fe::ReductionMode_t::AMAX))};
       },
       1},
      {"conv_fprop",
       [](Graph& g) {
         return std::vector{g.conv_fprop(made(g), made(g),
                                         Conv_fprop_attributes()
                                             .set_padding({1, 1})
                                             .set_stride({1, 1})
                                             .set_dilation({1, 1})
                                             .set_name("conv"))};
       },
       1},
      {"conv_dgrad",
       [](Graph& g) {
         return std::vector{g.conv_dgrad(
             made(g), made(g),
             Conv_dgrad_attributes().set_pre_padding({1, 1}).set_post_padding({1, 1}))};
       },
       1},
      {"conv_wgrad",
       [](Graph& g) {
         return std::vector{g.conv_wgrad(made(g), made(g),
                                         Conv_wgrad_attributes().set_convolution_mode(
                                             fe::ConvolutionMode_t::CROSS_CORRELATION))};
       },
       1},
      {"genstats", [](Graph& g) { return listed(g.genstats(made(g), Genstats_attributes())); }, 2},
      {"resample",
       [](Graph& g) {
         return listed(g.resample(made(g), Resample_attributes()
                                               .set_is_inference(false)
                                               .set_resampling_mode(fe::ResampleMode_t::MAXPOOL)
                                               .set_padding_mode(fe::PaddingMode_t::NEG_INF_PAD)
                                               .set_window({2, 3})
                                               .set_stride({4, 5})));
       },
       2},
      {"bn_finalize",
       [](Graph& g) {
         const int64_t count = 64;
         return listed(g.bn_finalize(made(g), made(g), made(g), made(g), g.tensor(0.001f),
                                     g.tensor(count),
                                     BN_finalize_attributes().set_previous_running_stats(
                                         made(g), made(g), g.tensor(0.001f))));
       },
       6},
      {"dbn_weight",
       [](Graph& g) {
         return listed(
             g.dbn_weight(made(g), made(g), made(g), made(g), made(g), DBN_weight_attributes()));
       },
       5},
      {"adalayernorm",
       [](Graph& g) {
         return listed(g.adalayernorm(
             made(g), made(g), made(g),
             AdaLayernorm_attributes().set_forward_phase(fe::NormFwdPhase_t::INFERENCE)));
       },
       1},
      {"adalayernorm_backward",
       [](Graph& g) {
         return listed(g.adalayernorm_backward(
             made(g), made(g), made(g),
             AdaLayernorm_backward_attributes().set_saved_mean_and_inv_variance(made(g), made(g))));
       },
       3},
      {"reshape",
       [](Graph& g) {
         return std::vector{
             g.reshape(made(g), Reshape_attributes().set_reshape_mode(fe::ReshapeMode_t::LOGICAL))};
       },
       1},
      {"slice",
       [](Graph& g) {
         return std::vector{g.slice(made(g), Slice_attributes().set_slices({{0, 2}, {1, 8}}))};
       },
       1},
      {"transpose",
       [](Graph& g) {
         return std::vector{
             g.transpose(made(g), Transpose_attributes().set_permutation({1, 0, 2, 3}))};
       },
       1},
      {"concatenate",
       [](Graph& g) {
         return std::vector{
             g.concatenate({made(g), made(g)}, Concatenate_attributes().set_axis(0))};
       },
       1},
      {"block_scale_quantize",
       [](Graph& g) {
         return listed(g.block_scale_quantize(
             made(g),
             Block_scale_quantize_attributes().set_block_size(32).set_axis(1).set_transpose(
                 false)));
       },
       2},
      {"block_scale_dequantize",
       [](Graph& g) {
         return std::vector{g.block_scale_dequantize(
             made(g), made(g), Block_scale_dequantize_attributes().set_block_size(32))};
       },
       1},
      {"rng",
       [](Graph& g) {
         return std::vector{g.rng(made(g), made(g),
                                  Rng_attributes()
                                      .set_distribution(fe::RngDistribution_t::BERNOULLI)
                                      .set_bernoulli_probability(0.9))};
       },
       1},
      {"sdpa_mxfp8_backward",
       [](Graph& g) {
         const Tensor x = made(g);
         return listed(g.sdpa_fp8_backward(
             x, x, x, x, x, x, x, x, x, x, x, x, x, x, x, x, x,
             SDPA_fp8_backward_attributes().set_name("mxfp8").set_attn_scale(0.123f)));
       },
       6},
  };
}

class CudnnDeclinedOps : public testing::TestWithParam<Op> {};

TEST_P(CudnnDeclinedOps, CompileAndAreDeclinedByName) {
  Graph graph;
  graph.set_io_data_type(fe::DataType_t::HALF)
      .set_intermediate_data_type(fe::DataType_t::FLOAT)
      .set_compute_data_type(fe::DataType_t::FLOAT);
  size_t count = 0;
  for (const Tensor& output : GetParam().make(graph)) {
    if (!output) continue;
    output->set_output(true).set_data_type(fe::DataType_t::FLOAT);
    ++count;
  }
  EXPECT_EQ(count, GetParam().count);
  std::ostringstream shown;
  shown << graph;  // as programs print what they are about to validate
  const std::string sentence = std::string("The op ") + GetParam().name + " is not supported: ";
  const fe::error_t refused = graph.validate();
  EXPECT_EQ(refused.get_code(), fe::error_code_t::GRAPH_NOT_SUPPORTED);
  EXPECT_NE(refused.get_message().find(sentence), std::string::npos) << refused.get_message();
  cudnnContext cpu{HEDDLE_CPU};
  int64_t engines = 7, bytes = 0;
  EXPECT_EQ(graph.get_engine_count(engines).get_code(), fe::error_code_t::GRAPH_NOT_SUPPORTED);
  EXPECT_EQ(engines, 0);
  EXPECT_TRUE(graph.build_operation_graph(&cpu).is_bad());
  EXPECT_TRUE(graph.create_execution_plans({fe::HeurMode_t::A}).is_bad());
  EXPECT_TRUE(graph.check_support().is_bad());
  EXPECT_TRUE(graph.build_plans().is_bad());
  EXPECT_TRUE(graph.get_workspace_size(bytes).is_bad());
  std::unordered_map<Tensor, void*> pack;
  EXPECT_TRUE(graph.execute(&cpu, pack, nullptr).is_bad());
}

INSTANTIATE_TEST_SUITE_P(Ops, CudnnDeclinedOps, testing::ValuesIn(ops()), [](const auto& drawn) {
  return std::string(drawn.param.name) + "_" + std::to_string(drawn.index);
});

TEST(CudnnDeclinedOps, AreNamedAsTheProgramNamedThem) {
  Graph graph;
  graph.matmul(made(graph), made(graph), fe::graph::Matmul_attributes().set_name("GEMM"));
  EXPECT_NE(graph.validate().get_message().find("'GEMM'"), std::string::npos);
}

TEST(CudnnDeclinedTensors, OfVectorsAndOfTypesThatNoGraphHas) {
  const auto refusal = [](const fe::graph::Tensor_attributes& attributes) {
    Graph graph;
    graph.set_io_data_type(fe::DataType_t::FLOAT);
    const Tensor y =
        graph.pointwise(graph.tensor(attributes),
                        fe::graph::Pointwise_attributes().set_mode(fe::PointwiseMode_t::IDENTITY));
    y->set_output(true);
    const fe::error_t error = graph.validate();
    EXPECT_EQ(error.get_code(), fe::error_code_t::GRAPH_NOT_SUPPORTED);
    return error.get_message();
  };
  fe::graph::Tensor_attributes x;
  x.set_name("x").set_dim({4, 8, 1, 1});
  EXPECT_NE(refusal(fe::graph::Tensor_attributes(x).set_vector_count_and_dimension(4, 1))
                .find("'x' has vectors of 4 elements"),
            std::string::npos);
  for (const auto& [type, name] : {std::pair{fe::DataType_t::INT8x4, "INT8x4"},
                                   {fe::DataType_t::UINT8x4, "UINT8x4"},
                                   {fe::DataType_t::INT8x32, "INT8x32"},
                                   {fe::DataType_t::FP8_E5M3, "FP8_E5M3"},
                                   {fe::DataType_t::FP4_E2M1, "FP4_E2M1"},
                                   {fe::DataType_t::INT4, "INT4"},
                                   {fe::DataType_t::FAST_FLOAT_FOR_FP8, "FAST_FLOAT_FOR_FP8"}}) {
    EXPECT_NE(refusal(fe::graph::Tensor_attributes(x).set_data_type(type)).find(name),
              std::string::npos);
  }
}

// Graphs are values, as programs return them beside their tensors.
TEST(CudnnPointwise, AddsASquareInAGraphThatWasCopied) {
  const auto build = [](cudnnHandle_t handle) {
    Graph graph;
    graph.set_io_data_type(fe::DataType_t::FLOAT)
        .set_intermediate_data_type(fe::DataType_t::FLOAT)
        .set_compute_data_type(fe::DataType_t::FLOAT);
    const Tensor a = made(graph, "a"), b = made(graph, "b");
    const Tensor y = graph.pointwise(
        a, b, fe::graph::Pointwise_attributes().set_mode(fe::PointwiseMode_t::ADD_SQUARE));
    y->set_output(true);
    EXPECT_TRUE(graph.build(handle, {fe::HeurMode_t::A}).is_good());
    return std::make_tuple(graph, a, b, y);
  };
  cudnnContext cpu{HEDDLE_CPU};
  auto [graph, a, b, y] = build(&cpu);
  std::vector<float> first(32, 3), second(32, -0.5f), sum(32, NAN);
  second[7] = 4;
  std::vector<char> workspace(static_cast<size_t>(graph.get_workspace_size()));
  const std::unordered_map<Tensor, void*> pack{
      {a, first.data()}, {b, second.data()}, {y, sum.data()}};
  const fe::error_t error = graph.execute(&cpu, pack, workspace.data());
  ASSERT_TRUE(error.is_good()) << error.get_message();
  EXPECT_EQ(sum[0], 3.25f);
  EXPECT_EQ(sum[7], 19.0f);
}

TEST(CudnnDeclinedEngines, SayThatAttentionBelongsIntoAGraph) {
  const fe::experimental::AttentionShape_t shape = {2, 4, 2, 2, 1024, 2048, 128, 128};
  fe::experimental::Sm90SdpaPrefillEngine engine;
  const fe::error_t refused = engine.check_support(shape, 90);
  EXPECT_EQ(refused.get_code(), fe::error_code_t::GRAPH_NOT_SUPPORTED);
  EXPECT_NE(refused.get_message().find("for SM 90 takes no graph"), std::string::npos);
  EXPECT_TRUE(engine.build().is_bad());
  const std::vector<int64_t> strides{4 * 1024 * 128, 128, 4 * 128, 1};
  EXPECT_TRUE(engine.execute(2, 4, 2, 1024, 2048, 128, nullptr, strides, 0.1f).is_bad());
  EXPECT_EQ(fe::experimental::Sm100SdpaPrefillEngine::get_workspace_size(), 0);
}

TEST(CudnnTensors, NumbersOfEitherKind) {
  const fe::graph::Tensor_attributes one(0.5f, fe::graph::ScalarType::RUNTIME_PARAM);
  const fe::graph::Tensor_attributes two(int32_t{3}, fe::graph::ScalarType::COMPILE_TIME_CONST);
  EXPECT_TRUE(one.get_has_compile_time_constant());
  EXPECT_EQ(one.get_data_type(), fe::DataType_t::FLOAT);
  EXPECT_EQ(two.get_constant(), 3);
}

}  // namespace
