// Instance norm and batch norm built as programs for cudnn_frontend build them, against f64.
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "heddle/cudnn_frontend.h"

namespace fe = cudnn_frontend;

namespace {

using Tensor = std::shared_ptr<fe::graph::Tensor_attributes>;
using Pack = std::unordered_map<Tensor, void*>;

constexpr int64_t N = 3, C = 5, M = 14;
constexpr double kEpsilon = 1e-3, kMomentum = 0.25;

/// X [N,C,M], channels innermost, and what is made of it.
class CudnnChannelNorm : public ::testing::Test {
 protected:
  CudnnChannelNorm() {
    for (size_t i = 0; i < x.size(); ++i) {
      x[i] = static_cast<float>(std::sin(0.7 * static_cast<double>(i)) + 3);
      dy[i] = static_cast<float>(std::cos(1.3 * static_cast<double>(i)));
    }
    for (size_t c = 0; c < C; ++c) {
      scale[c] = 0.5f + static_cast<float>(c);
      bias[c] = 1.0f - static_cast<float>(c);
      running_mean[c] = static_cast<float>(c);
      running_var[c] = 2.0f + static_cast<float>(c);
    }
  }

  static size_t at(int64_t n, int64_t c, int64_t m) {
    return static_cast<size_t>((n * M + m) * C + c);
  }
  static fe::graph::Graph graph() {
    fe::graph::Graph made;
    made.set_io_data_type(fe::DataType_t::FLOAT)
        .set_intermediate_data_type(fe::DataType_t::FLOAT)
        .set_compute_data_type(fe::DataType_t::FLOAT);
    return made;
  }
  static Tensor whole(fe::graph::Graph& graph, const char* name) {
    return graph.tensor(
        fe::graph::Tensor_attributes().set_name(name).set_dim({N, C, M}).set_stride({M * C, 1, C}));
  }
  static Tensor channels(fe::graph::Graph& graph, const char* name, int64_t entries = 1) {
    return graph.tensor(fe::graph::Tensor_attributes()
                            .set_name(name)
                            .set_dim({entries, C, 1})
                            .set_stride({C, 1, 1}));
  }
  static void run(fe::graph::Graph& graph, Pack pack) {
    cudnnContext cpu{HEDDLE_CPU};
    const fe::error_t built = graph.build(&cpu, {fe::HeurMode_t::A});
    ASSERT_TRUE(built.is_good()) << built.get_message();
    std::vector<char> workspace(static_cast<size_t>(graph.get_workspace_size()));
    const fe::error_t ran = graph.execute(&cpu, pack, workspace.data());
    ASSERT_TRUE(ran.is_good()) << ran.get_message();
  }

  struct Statistics {
    double mean = 0, variance = 0;
    double inverse() const { return 1 / std::sqrt(variance + kEpsilon); }
  };
  /// Of entries [first, last) of a channel.
  Statistics statistics(int64_t first, int64_t last, int64_t c) const {
    Statistics made;
    const auto count = static_cast<double>((last - first) * M);
    for (int64_t n = first; n < last; ++n)
      for (int64_t m = 0; m < M; ++m) made.mean += x[at(n, c, m)] / count;
    for (int64_t n = first; n < last; ++n)
      for (int64_t m = 0; m < M; ++m)
        made.variance += std::pow(x[at(n, c, m)] - made.mean, 2) / count;
    return made;
  }

  std::vector<float> x = std::vector<float>(N * C * M), dy = x, y = x, dx = x;
  std::vector<float> scale = std::vector<float>(C), bias = scale, running_mean = scale,
                     running_var = scale, d_scale = scale, d_bias = scale;
  std::vector<float> mean = std::vector<float>(N * C), inverse = mean;
};

TEST_F(CudnnChannelNorm, BatchNormMovesRunningStatisticsInPlace) {
  fe::graph::Graph g = graph();
  const Tensor in = whole(g, "x"), factor = channels(g, "scale"), added = channels(g, "bias"),
               before = channels(g, "mean"), variance = channels(g, "variance");
  auto options = fe::graph::Batchnorm_attributes().set_name("BN").set_epsilon(
      g.tensor(static_cast<float>(kEpsilon)));
  options.set_previous_running_stats(before, variance, g.tensor(static_cast<float>(kMomentum)));
  const auto [out, means, statistic, next_mean, next_var] = g.batchnorm(in, factor, added, options);
  for (const Tensor& made : {out, means, statistic, next_mean, next_var}) made->set_output(true);
  const std::vector<float> mean_before = running_mean, var_before = running_var;
  run(g, {{in, x.data()},
          {factor, scale.data()},
          {added, bias.data()},
          {before, running_mean.data()},
          {variance, running_var.data()},
          {next_mean, running_mean.data()},
          {next_var, running_var.data()},
          {out, y.data()},
          {means, mean.data()},
          {statistic, inverse.data()}});
  for (int64_t c = 0; c < C; ++c) {
    const auto i = static_cast<size_t>(c);
    const Statistics of = statistics(0, N, c);
    const double n = N * M;
    EXPECT_NEAR(mean[i], of.mean, 1e-6);
    EXPECT_NEAR(inverse[i], of.inverse(), 1e-6);
    EXPECT_NEAR(running_mean[i], (1 - kMomentum) * mean_before[i] + kMomentum * of.mean, 1e-6);
    EXPECT_NEAR(running_var[i],
                (1 - kMomentum) * var_before[i] + kMomentum * of.variance * n / (n - 1), 1e-6);
    for (int64_t e = 0; e < N; ++e)
      for (int64_t m = 0; m < M; ++m)
        EXPECT_NEAR(y[at(e, c, m)], (x[at(e, c, m)] - of.mean) * of.inverse() * scale[i] + bias[i],
                    1e-5);
  }
}

TEST_F(CudnnChannelNorm, InstanceNormAndItsBackward) {
  fe::graph::Graph g = graph();
  const Tensor in = whole(g, "x"), factor = channels(g, "scale");
  const auto [out, means, statistic] =
      g.instancenorm(in, factor, nullptr,
                     fe::graph::Instancenorm_attributes()
                         .set_forward_phase(fe::NormFwdPhase_t::TRAINING)
                         .set_epsilon(static_cast<float>(kEpsilon)));
  for (const Tensor& made : {out, means, statistic}) made->set_output(true);
  run(g, {{in, x.data()},
          {factor, scale.data()},
          {out, y.data()},
          {means, mean.data()},
          {statistic, inverse.data()}});

  fe::graph::Graph back = graph();
  const Tensor gradient = whole(back, "dy"), in2 = whole(back, "x"),
               factor2 = channels(back, "scale"), mean2 = channels(back, "mean", N),
               inverse2 = channels(back, "inverse", N);
  const auto [dx2, of_scale, of_bias] = back.instancenorm_backward(
      gradient, in2, factor2,
      fe::graph::Instancenorm_backward_attributes().set_saved_mean_and_inv_variance(mean2,
                                                                                    inverse2));
  for (const Tensor& made : {dx2, of_scale, of_bias}) made->set_output(true);
  run(back, {{gradient, dy.data()},
             {in2, x.data()},
             {factor2, scale.data()},
             {mean2, mean.data()},
             {inverse2, inverse.data()},
             {dx2, dx.data()},
             {of_scale, d_scale.data()},
             {of_bias, d_bias.data()}});
  for (int64_t c = 0; c < C; ++c) {
    const auto i = static_cast<size_t>(c);
    double sum = 0, along = 0;
    for (int64_t n = 0; n < N; ++n) {
      const Statistics of = statistics(n, n + 1, c);
      double g_mean = 0, g_along = 0;
      const auto x_hat = [&](int64_t m) { return (x[at(n, c, m)] - of.mean) * of.inverse(); };
      for (int64_t m = 0; m < M; ++m) {
        EXPECT_NEAR(y[at(n, c, m)], x_hat(m) * scale[i], 1e-5);
        g_mean += dy[at(n, c, m)] / double{M};
        g_along += dy[at(n, c, m)] * x_hat(m) / double{M};
      }
      for (int64_t m = 0; m < M; ++m)
        EXPECT_NEAR(dx[at(n, c, m)],
                    of.inverse() * scale[i] * (dy[at(n, c, m)] - g_mean - x_hat(m) * g_along),
                    2e-5);
      sum += g_mean * M, along += g_along * M;
    }
    EXPECT_NEAR(d_bias[i], sum, 1e-5);
    EXPECT_NEAR(d_scale[i], along, 1e-5);
  }
}

TEST_F(CudnnChannelNorm, BatchNormOfInferenceBeforeABackward) {
  fe::graph::Graph g = graph();
  const Tensor in = whole(g, "x"), gradient = whole(g, "dy"), factor = channels(g, "scale"),
               added = channels(g, "bias"), means = channels(g, "mean"),
               statistic = channels(g, "inverse");
  const Tensor out = g.batchnorm_inference(in, means, statistic, factor, added,
                                           fe::graph::Batchnorm_inference_attributes());
  const auto [dx2, of_scale, of_bias] = g.batchnorm_backward(
      gradient, in, factor,
      fe::graph::Batchnorm_backward_attributes().set_saved_mean_and_inv_variance(means, statistic));
  for (const Tensor& made : {out, dx2, of_scale, of_bias}) made->set_output(true);
  for (size_t c = 0; c < C; ++c) mean[c] = 0.5f * bias[c], inverse[c] = 0.3f + scale[c];
  run(g, {{in, x.data()},
          {gradient, dy.data()},
          {factor, scale.data()},
          {added, bias.data()},
          {means, mean.data()},
          {statistic, inverse.data()},
          {out, y.data()},
          {dx2, dx.data()},
          {of_scale, d_scale.data()},
          {of_bias, d_bias.data()}});
  for (int64_t c = 0; c < C; ++c) {
    const auto i = static_cast<size_t>(c);
    const double count = N * M;
    double sum = 0, along = 0;
    const auto x_hat = [&](int64_t n, int64_t m) {
      return (double{x[at(n, c, m)]} - mean[i]) * inverse[i];
    };
    for (int64_t n = 0; n < N; ++n)
      for (int64_t m = 0; m < M; ++m) {
        EXPECT_NEAR(y[at(n, c, m)], x_hat(n, m) * scale[i] + bias[i], 1e-4);
        sum += dy[at(n, c, m)], along += dy[at(n, c, m)] * x_hat(n, m);
      }
    EXPECT_NEAR(d_bias[i], sum, 1e-5);
    EXPECT_NEAR(d_scale[i], along, 1e-4);
    for (int64_t n = 0; n < N; ++n)
      for (int64_t m = 0; m < M; ++m)
        EXPECT_NEAR(
            dx[at(n, c, m)],
            inverse[i] * scale[i] * (dy[at(n, c, m)] - sum / count - x_hat(n, m) * along / count),
            2e-4);
  }
}

TEST_F(CudnnChannelNorm, PeersAreDeclined) {
  fe::graph::Graph g = graph();
  const Tensor in = whole(g, "x"), factor = channels(g, "scale");
  g.batchnorm(
       in, factor, nullptr,
       fe::graph::Batchnorm_attributes().set_epsilon(1e-5f).set_peer_stats({factor, factor}))[0]
      ->set_output(true);
  const fe::error_t refused = g.validate();
  EXPECT_EQ(refused.get_code(), fe::error_code_t::GRAPH_NOT_SUPPORTED);
  EXPECT_NE(refused.get_message().find("peer_stats are set"), std::string::npos)
      << refused.get_message();
}

}  // namespace
