// Handles, norms, rope, what is declined and what has no GPU, under cuDNN frontend's names.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <sstream>
#include <thread>

#include "attention_f64.h"
#include "heddle/cudnn_frontend.h"

namespace fe = cudnn_frontend;

namespace {

using Tensor = std::shared_ptr<fe::graph::Tensor_attributes>;
using heddle::testing::AttentionF64;

constexpr int64_t ROWS = 12, WIDTH = 40;

std::string last_sentence() {
  char message[200];
  cudnnGetLastErrorString(message, sizeof message);
  return message;
}

/// Names the device for as long as it is there.
struct Device {
  explicit Device(const char* name) { setenv("HEDDLE_DEVICE", name, 1); }
  ~Device() { unsetenv("HEDDLE_DEVICE"); }
};

fe::graph::Graph float_graph() {
  fe::graph::Graph graph;
  graph.set_io_data_type(fe::DataType_t::FLOAT)
      .set_intermediate_data_type(fe::DataType_t::FLOAT)
      .set_compute_data_type(fe::DataType_t::FLOAT);
  return graph;
}

Tensor tensor(fe::graph::Graph& graph, const char* name, std::vector<int64_t> dim,
              std::vector<int64_t> stride = {}) {
  return graph.tensor(
      fe::graph::Tensor_attributes().set_name(name).set_dim(dim).set_stride(stride));
}
Tensor rows(fe::graph::Graph& graph, const char* name) {
  return tensor(graph, name, {ROWS, WIDTH, 1, 1}, {WIDTH, 1, WIDTH, WIDTH});
}
Tensor row(fe::graph::Graph& graph, const char* name) {
  return tensor(graph, name, {1, WIDTH, 1, 1}, {WIDTH, 1, WIDTH, WIDTH});
}
Tensor column(fe::graph::Graph& graph, const char* name) {
  return tensor(graph, name, {ROWS, 1, 1, 1}, {1, 1, 1, 1});
}

/// Attention of one head, whose tensors have the uids 1, 2, 3 and 4.
fe::graph::Graph attention(fe::graph::SDPA_attributes options = {}) {
  fe::graph::Graph graph = float_graph();
  Tensor inputs[3];
  int64_t uid = 0;
  for (Tensor& input : inputs) {
    input = tensor(graph, "x", {1, 1, 8, 16});
    input->set_uid(++uid);
  }
  graph.sdpa(inputs[0], inputs[1], inputs[2], options.set_generate_stats(false))[0]
      ->set_output(true)
      .set_uid(4);
  return graph;
}

std::string refusal(fe::graph::Graph& graph, fe::error_code_t code) {
  const fe::error_t error = graph.validate();
  EXPECT_EQ(error.get_code(), code) << error.get_message();
  return error.get_message();
}

// ---- Handles

TEST(CudnnHandle, IsOfTheDeviceThatIsNamed) {
  cudnnHandle_t handle = nullptr;
  {
    const Device cpu("cpu");
    ASSERT_EQ(cudnnCreate(&handle), CUDNN_STATUS_SUCCESS);
    EXPECT_EQ(handle->device, HEDDLE_CPU);
    EXPECT_EQ(cudnnDestroy(handle), CUDNN_STATUS_SUCCESS);
  }
  const Device none("tpu");
  EXPECT_EQ(cudnnCreate(&handle), CUDNN_STATUS_NOT_INITIALIZED);
  EXPECT_EQ(handle, nullptr);
  EXPECT_EQ(last_sentence(), "HEDDLE_DEVICE is 'tpu', expected cpu or cuda");
  EXPECT_STREQ(cudnnGetErrorString(CUDNN_STATUS_NOT_INITIALIZED), "CUDNN_STATUS_NOT_INITIALIZED");
}

TEST(CudnnHandle, KeepsItsStream) {
  cudnnContext cpu{HEDDLE_CPU};
  int some = 0;
  CUstream_st* const stream = reinterpret_cast<CUstream_st*>(&some);
  CUstream_st* found = stream;
  ASSERT_EQ(cudnnGetStream(&cpu, &found), CUDNN_STATUS_SUCCESS);
  EXPECT_EQ(found, nullptr);
  ASSERT_EQ(cudnnSetStream(&cpu, stream), CUDNN_STATUS_SUCCESS);
  ASSERT_EQ(cudnnGetStream(&cpu, &found), CUDNN_STATUS_SUCCESS);
  EXPECT_EQ(found, stream);
}

TEST(CudnnHandle, NullIsRefusedEverywhere) {
  CUstream_st* stream = nullptr;
  cudnnContext cpu{HEDDLE_CPU};
  EXPECT_EQ(cudnnCreate(nullptr), CUDNN_STATUS_BAD_PARAM);
  EXPECT_EQ(cudnnDestroy(nullptr), CUDNN_STATUS_BAD_PARAM);
  EXPECT_NE(last_sentence().find("handle of cudnnDestroy is null"), std::string::npos);
  EXPECT_EQ(cudnnSetStream(nullptr, nullptr), CUDNN_STATUS_BAD_PARAM);
  EXPECT_EQ(cudnnGetStream(nullptr, &stream), CUDNN_STATUS_BAD_PARAM);
  EXPECT_EQ(cudnnGetStream(&cpu, nullptr), CUDNN_STATUS_BAD_PARAM);
  char one = 'x';
  cudnnGetLastErrorString(&one, 1);
  EXPECT_EQ(one, '\0');
  cudnnGetLastErrorString(nullptr, 5);

  const cudnnHandle_t null = nullptr;
  fe::graph::Graph graph = attention();
  std::unordered_map<int64_t, void*> pack;
  int64_t bytes;
  EXPECT_EQ(graph.build(null, {fe::HeurMode_t::A}).get_code(), fe::error_code_t::HANDLE_ERROR);
  ASSERT_TRUE(graph.build(&cpu, {fe::HeurMode_t::A}).is_good());
  for (const fe::error_t& error :
       {graph.build_operation_graph(null), graph.check_support(null), graph.build_plans(null),
        graph.execute(null, pack, nullptr), graph.warmup(null),
        graph.get_workspace_size(null, bytes, {}, {}, {}),
        graph.populate_cuda_graph(null, pack, nullptr, nullptr)}) {
    EXPECT_EQ(error.get_code(), fe::error_code_t::HANDLE_ERROR);
    EXPECT_EQ(error.get_message(), "The handle is null, expected one of a device.");
  }
}

TEST(Cudnn, VersionsAreThoseThatProgramsAskFor) {
  EXPECT_EQ(cudnnGetVersion(), 92400u);
  EXPECT_EQ(CUDNN_VERSION, 92400);
  EXPECT_GE(CUDNN_FRONTEND_VERSION, 12300);
  EXPECT_EQ(fe::detail::get_backend_version(), 92400u);
  EXPECT_GE(cudnnGetCudartVersion(), 12000u);
}

// ---- Norms and rope: packs by tensor, strides of dims of size 1 that mean nothing

class CudnnNorm : public ::testing::Test {
 protected:
  std::vector<float> x = AttentionF64::random(ROWS * WIDTH, 1),
                     dy = AttentionF64::random(ROWS * WIDTH, 2),
                     scale = AttentionF64::random(WIDTH, 3), bias = AttentionF64::random(WIDTH, 4),
                     y = std::vector<float>(x.size(), NAN), dx = y,
                     mean = std::vector<float>(ROWS, NAN), inverse = mean,
                     d_scale = std::vector<float>(WIDTH, NAN), d_bias = d_scale;
  std::vector<double> y64, dx64, mean64, inverse64, d_scale64, d_bias64;
  cudnnContext cpu{HEDDLE_CPU};

  void compute(bool centred, bool with_bias) {
    y64.assign(x.size(), 0), dx64 = y64, mean64.assign(ROWS, 0), inverse64 = mean64;
    d_scale64.assign(WIDTH, 0), d_bias64 = d_scale64;
    for (size_t i = 0; i < ROWS; ++i) {
      const float *in = &x[i * WIDTH], *d = &dy[i * WIDTH];
      double square = 0, mean_g = 0, mean_gx = 0;
      for (size_t c = 0; c < WIDTH; ++c) mean64[i] += centred ? double(in[c]) / WIDTH : 0;
      for (size_t c = 0; c < WIDTH; ++c) square += std::pow(in[c] - mean64[i], 2) / WIDTH;
      inverse64[i] = 1 / std::sqrt(square + 1e-3f);
      const auto hat = [&](size_t c) { return (in[c] - mean64[i]) * inverse64[i]; };
      for (size_t c = 0; c < WIDTH; ++c) {
        y64[i * WIDTH + c] = hat(c) * scale[c] + (with_bias ? bias[c] : 0);
        d_scale64[c] += d[c] * hat(c), d_bias64[c] += d[c];
        mean_g += centred ? double(d[c]) * scale[c] / WIDTH : 0;
        mean_gx += double(d[c]) * scale[c] * hat(c) / WIDTH;
      }
      for (size_t c = 0; c < WIDTH; ++c)
        dx64[i * WIDTH + c] = inverse64[i] * (double(d[c]) * scale[c] - mean_g - hat(c) * mean_gx);
    }
  }
  void run(fe::graph::Graph& graph, std::unordered_map<Tensor, void*> pack) {
    fe::error_t error = graph.validate();
    ASSERT_TRUE(error.is_good()) << error.get_message();
    ASSERT_TRUE(graph.build_operation_graph(&cpu).is_good());
    error = graph.create_execution_plans({fe::HeurMode_t::FALLBACK});
    ASSERT_TRUE(error.is_good()) << error.get_message();
    ASSERT_TRUE(graph.check_support().is_good());
    ASSERT_TRUE(graph.build_plans(fe::BuildPlanPolicy_t::HEURISTICS_CHOICE, false).is_good());
    ASSERT_TRUE(graph.warmup(&cpu).is_good());
    std::vector<char> workspace(static_cast<size_t>(graph.get_workspace_size()));
    error = graph.execute(&cpu, pack, workspace.data());
    ASSERT_TRUE(error.is_good()) << error.get_message();
  }
  static void expect_near(const std::vector<float>& found, const std::vector<double>& wanted) {
    for (size_t i = 0; i < found.size(); ++i) ASSERT_NEAR(found[i], wanted[i], 5e-5) << i;
  }
};

TEST_F(CudnnNorm, RmsNormInTrainingAndInference) {
  for (bool training : {true, false}) {
    compute(false, !training);
    fe::graph::Graph graph;
    graph.set_intermediate_data_type(fe::DataType_t::FLOAT)
        .set_compute_data_type(fe::DataType_t::FLOAT);
    const Tensor in = rows(graph, "x"), factor = row(graph, "scale"), added = row(graph, "bias");
    for (const Tensor& one : {in, factor, added}) one->set_data_type(fe::DataType_t::FLOAT);
    auto epsilon = graph.tensor(1e-3f);
    auto options = fe::graph::Rmsnorm_attributes()
                       .set_forward_phase(training ? fe::NormFwdPhase_t::TRAINING
                                                   : fe::NormFwdPhase_t::INFERENCE)
                       .set_epsilon(epsilon);
    if (!training) options.set_bias(added);
    auto [out, statistic] = graph.rmsnorm(in, factor, options);
    out->set_output(true).set_data_type(fe::DataType_t::FLOAT);
    std::unordered_map<Tensor, void*> pack{
        {in, x.data()}, {factor, scale.data()}, {added, bias.data()}, {out, y.data()}};
    if (training) {
      statistic->set_output(true).set_data_type(fe::DataType_t::FLOAT);
      pack[statistic] = inverse.data();
    } else {
      EXPECT_EQ(statistic, nullptr);
    }
    run(graph, pack);
    expect_near(y, y64);
    if (training) expect_near(inverse, inverse64);
  }
}

TEST_F(CudnnNorm, RmsNormBackward) {
  compute(false, true);
  fe::graph::Graph graph = float_graph();
  inverse.assign(inverse64.begin(), inverse64.end());
  const Tensor gradient = rows(graph, "dy"), in = rows(graph, "x"), factor = row(graph, "scale"),
               statistic = column(graph, "inverse");
  auto [out, of_scale, of_bias] = graph.rmsnorm_backward(
      gradient, in, factor, statistic, fe::graph::Rmsnorm_backward_attributes().has_dbias(true));
  for (const Tensor& made : {out, of_scale, of_bias}) made->set_output(true);
  run(graph, {{gradient, dy.data()},
              {in, x.data()},
              {factor, scale.data()},
              {statistic, inverse.data()},
              {out, dx.data()},
              {of_scale, d_scale.data()},
              {of_bias, d_bias.data()}});
  expect_near(dx, dx64);
  expect_near(d_scale, d_scale64);
  expect_near(d_bias, d_bias64);
}

TEST_F(CudnnNorm, LayerNormWithAKernelCache) {
  compute(true, true);
  auto cache = std::make_shared<fe::KernelCache>();
  for (bool training : {true, false}) {
    fe::graph::Graph graph = float_graph();
    graph.set_dynamic_shape_enabled(true).set_kernel_cache(cache);
    const Tensor in = rows(graph, "x"), factor = row(graph, "scale"), added = row(graph, "bias");
    auto epsilon = graph.tensor(1e-3f);
    auto [out, means, statistic] =
        graph.layernorm(in, factor, added,
                        fe::graph::Layernorm_attributes()
                            .set_forward_phase(training ? fe::NormFwdPhase_t::TRAINING
                                                        : fe::NormFwdPhase_t::INFERENCE)
                            .set_zero_centered_gamma(false)
                            .set_epsilon(epsilon));
    out->set_output(true);
    std::unordered_map<Tensor, void*> pack{
        {in, x.data()}, {factor, scale.data()}, {added, bias.data()}, {out, y.data()}};
    if (training) {
      for (const Tensor& made : {means, statistic})
        made->set_output(true).set_data_type(fe::DataType_t::FLOAT);
      pack[means] = mean.data(), pack[statistic] = inverse.data();
    }
    std::ostringstream printed;
    printed << graph;
    EXPECT_NE(printed.str().find("layer_norm"), std::string::npos);
    run(graph, pack);
    expect_near(y, y64);
    if (training) expect_near(mean, mean64), expect_near(inverse, inverse64);
    std::fill(y.begin(), y.end(), NAN);
  }
}

TEST_F(CudnnNorm, LayerNormBackward) {
  compute(true, true);
  fe::graph::Graph graph = float_graph();
  mean.assign(mean64.begin(), mean64.end()), inverse.assign(inverse64.begin(), inverse64.end());
  const Tensor gradient = rows(graph, "dy"), in = rows(graph, "x"), factor = row(graph, "scale"),
               means = column(graph, "mean"), statistic = column(graph, "inverse");
  auto [out, of_scale, of_bias] = graph.layernorm_backward(
      gradient, in, factor,
      fe::graph::Layernorm_backward_attributes().set_saved_mean_and_inv_variance(means, statistic));
  for (const Tensor& made : {out, of_scale, of_bias}) made->set_output(true);
  run(graph, {{gradient, dy.data()},
              {in, x.data()},
              {factor, scale.data()},
              {means, mean.data()},
              {statistic, inverse.data()},
              {out, dx.data()},
              {of_scale, d_scale.data()},
              {of_bias, d_bias.data()}});
  expect_near(dx, dx64);
  expect_near(d_scale, d_scale64);
  expect_near(d_bias, d_bias64);
}

TEST(CudnnRope, RotatesForthAndBack) {
  constexpr int64_t B = 2, H = 3, S = 5, D = 8, R = 6;
  std::vector<float> x = AttentionF64::random(B * H * S * D, 1), y(x.size(), NAN), dx = y;
  std::vector<float> angles = AttentionF64::random(S * R, 2);
  fe::graph::Graph graph = float_graph();
  const Tensor in = tensor(graph, "x", {B, H, S, D}), freqs = tensor(graph, "f", {S, 1, 1, R});
  const Tensor out = graph.rope(
      in, freqs, fe::graph::RoPE_attributes().set_name("r").set_rope_dim(R).set_output_scale(0.5f));
  const Tensor back = graph.rope_backward(
      in, freqs, fe::graph::RoPE_backward_attributes().set_rope_dim(R).set_output_scale(0.5f));
  for (const Tensor& made : {out, back}) made->set_output(true);
  cudnnContext cpu{HEDDLE_CPU};
  const fe::error_t built = graph.build(&cpu, {fe::HeurMode_t::A});
  ASSERT_TRUE(built.is_good()) << built.get_message();
  std::vector<char> workspace(static_cast<size_t>(graph.get_workspace_size()));
  std::unordered_map<Tensor, void*> pack{
      {in, x.data()}, {freqs, angles.data()}, {out, y.data()}, {back, dx.data()}};
  ASSERT_TRUE(graph.execute_plan_at_index(&cpu, pack, workspace.data(), 0).is_good());
  for (int64_t n = 0; n < B * H * S; ++n) {
    for (int64_t d = 0; d < D; ++d) {
      const float* here = &x[static_cast<size_t>(n * D)];
      const int64_t j = (d - (D - R)) % (R / 2);
      const bool is_low = d < D - R / 2;
      const double t = d < D - R ? 0 : angles[static_cast<size_t>(n % S * R + j)];
      const double other = d < D - R ? 0 : here[is_low ? d + R / 2 : d - R / 2];
      const double sine = is_low ? -std::sin(t) : std::sin(t);
      const auto at = static_cast<size_t>(n * D + d);
      EXPECT_NEAR(y[at], 0.5 * (here[d] * std::cos(t) + other * sine), 1e-6);
      EXPECT_NEAR(dx[at], 0.5 * (here[d] * std::cos(t) - other * sine), 1e-6);
    }
  }
}

// ---- Attention on FP8 operands

/// One of its scales.
Tensor one(fe::graph::Graph& graph, const char* name) { return tensor(graph, name, {1, 1, 1, 1}); }

Tensor eighths(fe::graph::Graph& graph, const char* name) {
  const Tensor made = tensor(graph, name, {1, 1, 8, 16});
  made->set_data_type(fe::DataType_t::FP8_E4M3);
  return made;
}

TEST(CudnnFp8, BothPassesValidate) {
  fe::graph::Graph graph = float_graph();
  const Tensor q = eighths(graph, "q"), k = eighths(graph, "k"), v = eighths(graph, "v");
  const auto options = fe::graph::SDPA_fp8_attributes().set_name("a").set_causal_mask(true);
  const auto [o, stats, amax_s, amax_o] =
      graph.sdpa_fp8(q, k, v, one(graph, "dq"), one(graph, "dk"), one(graph, "dv"),
                     one(graph, "ds"), one(graph, "ss"), one(graph, "so"),
                     fe::graph::SDPA_fp8_attributes(options).set_is_inference(true));
  EXPECT_EQ(stats, nullptr);
  for (const Tensor& made : {amax_s, amax_o}) made->set_output(true);
  o->set_output(true).set_data_type(fe::DataType_t::FP8_E4M3);
  const fe::error_t error = graph.validate();
  EXPECT_TRUE(error.is_good()) << error.get_message();
  EXPECT_EQ(amax_o->get_data_type(), fe::DataType_t::FLOAT);
  EXPECT_EQ(o->get_dim(), (std::vector<int64_t>{1, 1, 8, 16}));

  fe::graph::Graph own = float_graph();
  const auto made = own.sdpa_fp8(eighths(own, "q"), eighths(own, "k"), eighths(own, "v"),
                                 one(own, "dq"), one(own, "dk"), one(own, "dv"),
                                 fe::graph::SDPA_fp8_attributes().set_generate_stats(true));
  EXPECT_NE(made[1], nullptr);
  for (const Tensor& output : made) output->set_output(true).set_data_type(fe::DataType_t::FLOAT);
  EXPECT_TRUE(own.validate().is_good());

  fe::graph::Graph backward = float_graph();
  Tensor scales[12];
  for (int n = 0; n < 12; ++n) scales[n] = one(backward, ("s" + std::to_string(n)).c_str());
  const auto gradients = backward.sdpa_fp8_backward(
      eighths(backward, "q"), eighths(backward, "k"), eighths(backward, "v"),
      eighths(backward, "o"), eighths(backward, "dO"), tensor(backward, "stats", {1, 1, 8, 1}),
      scales[0], scales[1], scales[2], scales[3], scales[4], scales[5], scales[6], scales[7],
      scales[8], scales[9], scales[10], scales[11],
      fe::graph::SDPA_fp8_backward_attributes().set_deterministic_algorithm(true));
  for (int n = 0; n < 3; ++n)
    gradients[n]->set_output(true).set_data_type(fe::DataType_t::FP8_E5M2);
  for (int n = 3; n < 7; ++n) gradients[n]->set_output(true);
  EXPECT_TRUE(backward.validate().is_good()) << backward.validate().get_message();
}

// ---- What is declined

TEST(CudnnDeclines, Fp8ByName) {
  fe::graph::Graph graph = float_graph();
  const Tensor x = eighths(graph, "x");
  const auto made = graph.sdpa_fp8(
      x, x, x, one(graph, "a"), one(graph, "b"), one(graph, "c"),
      fe::graph::SDPA_fp8_attributes().set_name("a").set_bias(tensor(graph, "bias", {1, 1, 8, 8})));
  made[0]->set_output(true);
  EXPECT_NE(refusal(graph, fe::error_code_t::GRAPH_NOT_SUPPORTED).find("a bias is given"),
            std::string::npos);
  fe::graph::Graph scales = attention();
  const Tensor e8m0 = tensor(scales, "scales", {1, 1, 1, 1});
  e8m0->set_data_type(fe::DataType_t::FP8_E8M0);
  scales.sdpa(e8m0, e8m0, e8m0, fe::graph::SDPA_attributes().set_generate_stats(false));
  EXPECT_NE(refusal(scales, fe::error_code_t::GRAPH_NOT_SUPPORTED).find("FP8_E8M0"),
            std::string::npos);
}

TEST(CudnnDeclines, ScoreModifiersThatAreNone) {
  using Inner = std::shared_ptr<fe::graph::Graph>;
  using fe::graph::Pointwise_attributes;
  const auto with = [](fe::graph::Score_function function) {
    fe::graph::Graph graph = attention(fe::graph::SDPA_attributes().set_score_mod(function));
    return refusal(graph, fe::error_code_t::ATTRIBUTE_NOT_SET);
  };
  EXPECT_NE(with([](Inner, Tensor) { return Tensor(); }).find("returned no tensor"),
            std::string::npos);
  EXPECT_NE(with([](Inner inner, Tensor score) {
              return inner->pointwise(score, nullptr,
                                      Pointwise_attributes().set_mode(fe::PointwiseMode_t::ADD));
            }).find("add of a null tensor"),
            std::string::npos);
  fe::graph::Graph lonely =
      attention(fe::graph::SDPA_attributes().set_score_mod([](Inner inner, Tensor score) {
        return inner->pointwise(score,
                                Pointwise_attributes().set_mode(fe::PointwiseMode_t::TANH_BWD));
      }));
  EXPECT_NE(refusal(lonely, fe::error_code_t::INVALID_VALUE).find("tanh_bwd"), std::string::npos);
}

TEST(CudnnPlans, AreFoundAgainByEngineAndKnobs) {
  cudnnContext cpu{HEDDLE_CPU};
  fe::graph::Graph graph = attention();
  ASSERT_TRUE(graph.build_operation_graph(&cpu).is_good());
  int64_t engine = 7;
  std::unordered_map<fe::KnobType_t, int64_t> knobs{{fe::KnobType_t::STAGES, 2}};
  EXPECT_TRUE(graph.get_engine_and_knobs_at_index(0, engine, knobs).is_bad());
  ASSERT_TRUE(graph.create_execution_plans({fe::HeurMode_t::A}).is_good());
  EXPECT_TRUE(graph.get_engine_and_knobs_at_index(1, engine, knobs).is_bad());
  ASSERT_TRUE(graph.get_engine_and_knobs_at_index(0, engine, knobs).is_good());
  EXPECT_TRUE(graph.create_execution_plan(engine, knobs).is_good());
  EXPECT_TRUE(graph.check_support(&cpu).is_good());
}

TEST(CudnnPlans, AKernelCacheGoesAsText) {
  std::string text;
  ASSERT_TRUE(fe::KernelCache().to_json(text).is_good());
  EXPECT_TRUE(fe::KernelCache().from_json(text).is_good());
  EXPECT_TRUE(fe::KernelCache().from_json("{}").is_bad());
}

// As programs walk over engines and their knobs to make plans of their own.
TEST(CudnnPlans, TheOneEngineHasNoKnobs) {
  cudnnContext cpu{HEDDLE_CPU};
  fe::graph::Graph graph = attention();
  ASSERT_TRUE(graph.build_operation_graph(&cpu).is_good());
  int64_t engines = 0;
  ASSERT_TRUE(graph.get_engine_count(engines).is_good());
  EXPECT_EQ(engines, 1);
  std::vector<fe::Knob> knobs(3);
  ASSERT_TRUE(graph.get_knobs_for_engine(0, knobs).is_good());
  EXPECT_TRUE(knobs.empty());
  EXPECT_NE(graph.get_knobs_for_engine(1, knobs).get_message().find("There is no engine 1"),
            std::string::npos);
  const fe::error_t turned = graph.create_execution_plan(0, {{fe::KnobType_t::STAGES, 2}});
  EXPECT_EQ(turned.get_code(), fe::error_code_t::INVALID_VALUE);
  EXPECT_NE(turned.get_message().find("is given 1 knobs, expected none"), std::string::npos);
  EXPECT_EQ(graph.get_execution_plan_count(), 0);
  EXPECT_TRUE(graph.create_execution_plan(-1, {}).is_bad());
  ASSERT_TRUE(graph.create_execution_plan(0, {}).is_good());
  EXPECT_EQ(graph.get_execution_plan_count(), 1);
  EXPECT_TRUE(graph.autotune(&cpu, std::unordered_map<int64_t, void*>{}, nullptr).is_bad())
      << "before there is a plan to run";
  ASSERT_TRUE(graph.check_support().is_good());
  EXPECT_TRUE(graph.autotune(&cpu, std::unordered_map<int64_t, void*>{}, nullptr).is_good());
  EXPECT_EQ(graph.get_autotune_workspace_size(), graph.get_workspace_size());
}

TEST(CudnnDeclines, NumericNotesAndSharedMemoryThatAreNotKnown) {
  cudnnContext cpu{HEDDLE_CPU};
  using Note = fe::NumericalNote_t;
  fe::graph::Graph graph = attention();
  const size_t key = graph.key();
  const auto build = [&] { return graph.build(&cpu, {fe::HeurMode_t::A}); };
  graph.select_numeric_notes({Note::TENSOR_CORE});
  EXPECT_NE(graph.key(), key);
  EXPECT_NE(build().get_message().find("TENSOR_CORE is not known, and it is selected"),
            std::string::npos);
  graph.select_numeric_notes({Note::WINOGRAD});
  EXPECT_NE(build().get_message().find("No plan has the numeric note WINOGRAD"), std::string::npos);
  graph.select_numeric_notes({}).deselect_numeric_notes({Note::FFT, Note::WINOGRAD_TILE_4x4});
  EXPECT_TRUE(build().is_good());
  graph.deselect_numeric_notes({Note::FFT, Note::NONDETERMINISTIC});
  EXPECT_EQ(build().get_code(), fe::error_code_t::GRAPH_EXECUTION_PLAN_CREATION_FAILED);
  graph.deselect_numeric_notes({}).deselect_shared_mem_greater_than(0);
  EXPECT_TRUE(build().is_good()) << "a CPU's plan takes none";
}

TEST(CudnnDeclines, BehaviorNotesThatThePlanHasNot) {
  cudnnContext cpu{HEDDLE_CPU};
  fe::graph::Graph graph = attention();
  graph.select_behavior_notes({fe::BehaviorNote_t::SUPPORTS_CUDA_GRAPH_NATIVE_API});
  const fe::error_t error = graph.build(&cpu, {fe::HeurMode_t::A});
  EXPECT_EQ(error.get_code(), fe::error_code_t::GRAPH_EXECUTION_PLAN_CREATION_FAILED);
  EXPECT_NE(error.get_message().find("has not the behavior note SUPPORTS_CUDA_GRAPH_NATIVE_API"),
            std::string::npos)
      << error.get_message();
  std::vector<fe::BehaviorNote_t> notes{fe::BehaviorNote_t::NOT_SET};
  EXPECT_TRUE(graph.get_behavior_notes(notes).is_good());
  EXPECT_TRUE(notes.empty());
  EXPECT_TRUE(graph.get_behavior_notes_for_plan_at_index(1, notes).is_bad());
  graph.select_behavior_notes({});
  graph.deselect_behavior_notes({fe::BehaviorNote_t::RUNTIME_COMPILATION});
  EXPECT_TRUE(graph.build(&cpu, {fe::HeurMode_t::A}).is_good());
}

TEST(CudnnDeclines, CudaGraphsOfACpu) {
  cudnnContext cpu{HEDDLE_CPU}, gpu{HEDDLE_CUDA};
  fe::graph::Graph graph = attention();
  ASSERT_TRUE(graph.build(&cpu, {fe::HeurMode_t::A}).is_good());
  std::unordered_map<int64_t, void*> pack;
  int some = 0;
  CUgraph_st* const cuda_graph = reinterpret_cast<CUgraph_st*>(&some);
  EXPECT_NE(graph.populate_cuda_graph(&cpu, pack, nullptr, cuda_graph)
                .get_message()
                .find("The handle is of the CPU"),
            std::string::npos);
  EXPECT_NE(graph.update_cuda_graph(&gpu, pack, nullptr, nullptr)
                .get_message()
                .find("The CUDA graph is null"),
            std::string::npos);
}

// ---- Without the GPU that it is for

TEST(CudnnDeviceless, PlansForAnSmVersionAndRunsWhereTheHandleIs) {
  fe::graph::Graph graph = attention();
  graph.set_sm_version(90);
  const fe::error_t error = graph.build({fe::HeurMode_t::A});
  ASSERT_TRUE(error.is_good()) << error.get_message();
  std::vector<fe::BehaviorNote_t> notes;
  ASSERT_TRUE(graph.get_behavior_notes(notes).is_good());
  EXPECT_EQ(notes.size(), 2u);
  std::vector<float> q(8 * 16, 0.5f), k = q, v = AttentionF64::random(8 * 16, 1), o(8 * 16, NAN);
  std::unordered_map<int64_t, void*> pack{
      {1, q.data()}, {2, k.data()}, {3, v.data()}, {4, o.data()}};
  cudnnContext cpu{HEDDLE_CPU};
  int64_t bytes = 0;
  ASSERT_TRUE(graph.get_workspace_size(&cpu, bytes, {}, {}, {}).is_good());
  std::vector<char> workspace(static_cast<size_t>(bytes));
  // Many threads ask for the plan of the CPU at once.
  std::vector<std::vector<float>> results(4, o);
  std::vector<std::thread> threads;
  for (std::vector<float>& result : results)
    threads.emplace_back([&, pack]() mutable {
      std::vector<char> own(static_cast<size_t>(bytes));
      pack[4] = result.data();
      EXPECT_TRUE(graph.execute(&cpu, pack, own.data()).is_good());
    });
  for (std::thread& thread : threads) thread.join();
  for (const std::vector<float>& result : results) {
    for (size_t d = 0; d < 16; ++d) {
      double mean = 0;
      for (size_t j = 0; j < 8; ++j) mean += v[j * 16 + d] / 8.0;
      EXPECT_NEAR(result[d], mean, 1e-6);  // of equal weights
    }
  }
  fe::graph::Graph old = attention();
  old.set_sm_version(70);
  const fe::error_t refused = old.build({fe::HeurMode_t::A});
  EXPECT_EQ(refused.get_code(), fe::error_code_t::GRAPH_NOT_SUPPORTED);
  EXPECT_NE(refused.get_message().find("sm_70"), std::string::npos) << refused.get_message();
}

TEST(CudnnDeviceless, PropertiesComeAsBytes) {
  const std::string text = "{\"sm_version\": 80, \"sm_count\": 108}";
  auto properties = std::make_shared<fe::DeviceProperties>();
  std::vector<uint8_t> bytes;
  EXPECT_EQ(properties->serialize(bytes).get_code(), fe::error_code_t::ATTRIBUTE_NOT_SET);
  ASSERT_TRUE(properties->deserialize({text.begin(), text.end()}).is_good());
  EXPECT_EQ(properties->get_sm_version(), 80);
  EXPECT_EQ(properties->get_sm_count(), 108);
  ASSERT_TRUE(properties->serialize(bytes).is_good());
  EXPECT_EQ(std::string(bytes.begin(), bytes.end()), text);
  for (std::string wrong : {"", "{}", "{\"sm_version\": 0, \"sm_count\": 1}",
                            "{\"sm_version\": 80, \"sm_count\": 108} "})
    EXPECT_EQ(properties->deserialize({wrong.begin(), wrong.end()}).get_code(),
              fe::error_code_t::INVALID_VALUE)
        << wrong;
  fe::graph::Graph graph = attention();
  graph.set_device_properties(properties);
  EXPECT_TRUE(graph.build({fe::HeurMode_t::A}).is_good());
}

// A plan of the device that there is by default, and where nothing says otherwise.
TEST(CudnnDeviceless, WithoutAnythingItIsTheDefaultDevice) {
  const Device cpu("cpu");
  fe::graph::Graph graph = attention();
  ASSERT_TRUE(graph.build_operation_graph().is_good());
  ASSERT_TRUE(graph.create_execution_plans({fe::HeurMode_t::OPENSOURCE}).is_good());
  ASSERT_TRUE(graph.build_plan_at_index(0).is_good());
  EXPECT_TRUE(graph.build_plan_at_index(1).is_bad());
  std::string name;
  ASSERT_TRUE(graph.get_plan_name_at_index(0, name).is_good());
  EXPECT_NE(name.find("cpu"), std::string::npos);
  EXPECT_TRUE(graph.get_plan_name_at_index(1, name).is_bad());
  int64_t bytes = -1;
  EXPECT_TRUE(graph.get_workspace_size_plan_at_index(0, bytes).is_good());
  EXPECT_EQ(bytes, graph.get_workspace_size_plan_at_index(0));
  EXPECT_TRUE(graph.get_workspace_size_plan_at_index(2, bytes).is_bad());
}

}  // namespace
