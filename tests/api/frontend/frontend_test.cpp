// The builder's ops: a program written against cuDNN's frontend, with the namespace exchanged.
#include "heddle/frontend.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

namespace fe = heddle::frontend;

namespace {

using fe::graph::Tensor;
using fe::graph::Tensor_attributes;

Tensor input(fe::graph::Graph& graph, const char* name, int64_t uid, std::vector<int64_t> dim) {
  std::vector<int64_t> stride(dim.size(), 1);
  for (size_t i = dim.size() - 1; i > 0; --i) stride[i - 1] = stride[i] * dim[i];
  return graph.tensor(
      Tensor_attributes().set_name(name).set_uid(uid).set_dim(dim).set_stride(stride));
}

fe::graph::Graph float_graph() {
  fe::graph::Graph graph;
  graph.set_io_data_type(fe::DataType_t::FLOAT)
      .set_intermediate_data_type(fe::DataType_t::FLOAT)
      .set_compute_data_type(fe::DataType_t::FLOAT);
  return graph;
}

std::vector<float> random(size_t count, unsigned seed) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(count);
  for (float& value : values) value = normal(generator);
  return values;
}

constexpr int64_t B = 2, H = 2, S = 12, D = 16;

struct Attention {
  fe::graph::Graph graph = float_graph();
  Tensor q = input(graph, "q", 1, {B, H, S, D});
  Tensor k = input(graph, "k", 2, {B, H, S, D});
  Tensor v = input(graph, "v", 3, {B, H, S, D});
  Tensor o;

  void add(fe::graph::SDPA_attributes attributes) {
    o = graph.sdpa(q, k, v, attributes.set_name("attention"))[0];
    o->set_output(true).set_uid(4);
  }
  void expect_failure(fe::error_code_t code, const std::string& sentence) {
    const fe::error_t error = graph.validate();
    EXPECT_TRUE(error.is_bad());
    EXPECT_EQ(error.get_code(), code);
    EXPECT_NE(error.get_message().find(sentence), std::string::npos) << error.get_message();
  }
  std::string text() {
    std::string text;
    const fe::error_t error = graph.serialize(text);
    EXPECT_TRUE(error.is_good()) << error.get_message();
    return text;
  }
};

fe::graph::SDPA_attributes plain() {
  return fe::graph::SDPA_attributes().set_generate_stats(false);
}

/// softmax(score(q.k * scale)) v on keys up to the row; the score function may be the identity.
template <class Score>
std::vector<float> by_hand(const std::vector<float>& q, const std::vector<float>& k,
                           const std::vector<float>& v, double scale, Score&& score) {
  std::vector<float> o(q.size());
  for (int64_t bh = 0; bh < B * H; ++bh) {
    for (int64_t i = 0; i < S; ++i) {
      std::vector<double> weights;
      double sum = 0;
      for (int64_t j = 0; j <= i; ++j) {
        double dot = 0;
        for (int64_t d = 0; d < D; ++d)
          dot += double(q[(bh * S + i) * D + d]) * k[(bh * S + j) * D + d];
        weights.push_back(std::exp(score(scale * dot, i, j)));
        sum += weights.back();
      }
      for (int64_t d = 0; d < D; ++d) {
        double value = 0;
        for (int64_t j = 0; j <= i; ++j) value += weights[j] / sum * v[(bh * S + j) * D + d];
        o[(bh * S + i) * D + d] = static_cast<float>(value);
      }
    }
  }
  return o;
}

template <class Score>
void expect_computes(Attention& attention, double scale, Score&& score) {
  const fe::Handle cpu;
  const fe::error_t built = attention.graph.build(cpu, {fe::HeurMode_t::A});
  ASSERT_TRUE(built.is_good()) << built.get_message();
  std::vector<float> q = random(B * H * S * D, 1), k = random(q.size(), 2), v = random(q.size(), 3);
  std::vector<float> o(q.size(), NAN);
  std::vector<char> workspace(static_cast<size_t>(attention.graph.get_workspace_size()));
  const fe::error_t run = attention.graph.execute(cpu,
                                                  {{attention.q, q.data()},
                                                   {attention.k, k.data()},
                                                   {attention.v, v.data()},
                                                   {attention.o, o.data()}},
                                                  workspace.data());
  ASSERT_TRUE(run.is_good()) << run.get_message();
  const std::vector<float> expected = by_hand(q, k, v, scale, score);
  for (size_t i = 0; i < o.size(); ++i) ASSERT_NEAR(o[i], expected[i], 1e-5) << i;
}

TEST(Frontend, CausalAttention) {
  Attention attention;
  attention.add(plain().set_attn_scale(0.25f).set_causal_mask(true));
  expect_computes(attention, 0.25, [](double s, int64_t, int64_t) { return s; });
}

TEST(Frontend, ScoreModifierWithCapturedTensor) {
  // Soft cap, then a causal mask by select, as score_mod lambdas are written.
  using fe::PointwiseMode_t;
  using fe::graph::Pointwise_attributes;
  Attention attention;
  const Tensor cap = attention.graph.tensor(5.0f);
  const Tensor lowest = attention.graph.tensor(-INFINITY);
  attention.add(plain().set_attn_scale(0.5f).set_score_mod(
      [&](std::shared_ptr<fe::graph::Graph> graph, Tensor score) {
        const auto apply = [&](PointwiseMode_t mode, const Tensor& a, const Tensor& b) {
          return graph->pointwise(a, b, Pointwise_attributes().set_mode(mode));
        };
        const Tensor ratio = apply(PointwiseMode_t::DIV, score, cap);
        const Tensor bounded =
            graph->pointwise(ratio, Pointwise_attributes().set_mode(PointwiseMode_t::TANH_FWD));
        const Tensor capped = apply(PointwiseMode_t::MUL, bounded, cap);
        const Tensor row = graph->pointwise(
            score, Pointwise_attributes().set_mode(PointwiseMode_t::GEN_INDEX).set_axis(2));
        const Tensor column = graph->pointwise(
            score, Pointwise_attributes().set_mode(PointwiseMode_t::GEN_INDEX).set_axis(3));
        row->set_data_type(fe::DataType_t::INT32);
        column->set_data_type(fe::DataType_t::INT32);
        const Tensor visible = apply(PointwiseMode_t::CMP_GE, row, column);
        visible->set_data_type(fe::DataType_t::BOOLEAN);
        return graph->pointwise(capped, lowest, visible,
                                Pointwise_attributes().set_mode(PointwiseMode_t::BINARY_SELECT));
      }));
  expect_computes(attention, 0.5, [](double s, int64_t, int64_t) { return 5 * std::tanh(s / 5); });
}

TEST(Frontend, InfersIntoTheTensors) {
  Attention attention;
  attention.add(fe::graph::SDPA_attributes().set_is_inference(true));
  ASSERT_TRUE(attention.graph.validate().is_good());
  EXPECT_EQ(attention.o->get_dim(), (std::vector<int64_t>{B, H, S, D}));
  EXPECT_EQ(attention.o->get_stride(), (std::vector<int64_t>{H * S * D, S * D, D, 1}));
  EXPECT_EQ(attention.o->get_data_type(), fe::DataType_t::FLOAT);
  EXPECT_TRUE(attention.graph.validate().is_good()) << "idempotent";
  Tensor_attributes found;
  ASSERT_TRUE(attention.graph.query_tensor_attributes_of_uid(4, found).is_good());
  EXPECT_EQ(found.get_dim(), attention.o->get_dim());
  EXPECT_TRUE(attention.graph.query_tensor_attributes_of_uid(99, found).is_bad());
}

TEST(Frontend, StatsFollowGenerateStats) {
  fe::graph::Graph graph = float_graph();
  const Tensor x = input(graph, "x", 1, {B, H, S, D});
  EXPECT_EQ(graph.sdpa(x, x, x, plain())[1], nullptr);
  const auto [o, stats] =
      graph.sdpa(x, x, x, fe::graph::SDPA_attributes().set_generate_stats(true));
  ASSERT_NE(stats, nullptr);
  EXPECT_TRUE(stats->get_is_virtual());
  EXPECT_TRUE(o->get_is_virtual());
}

TEST(Frontend, StatsMustBeSaid) {
  Attention attention;
  attention.add(fe::graph::SDPA_attributes());
  attention.expect_failure(fe::error_code_t::ATTRIBUTE_NOT_SET, "generate_stats is not set");
}

TEST(Frontend, OldCausalSettersAreBounds) {
  const auto text_of = [](fe::graph::SDPA_attributes attributes) {
    Attention attention;
    attention.add(std::move(attributes));
    return attention.text();
  };
  using fe::DiagonalAlignment_t;
  EXPECT_EQ(text_of(plain().set_causal_mask(true)),
            text_of(plain().set_diagonal_band_right_bound(0)));
  EXPECT_EQ(text_of(plain().set_causal_mask_bottom_right(true)),
            text_of(plain()
                        .set_diagonal_alignment(DiagonalAlignment_t::BOTTOM_RIGHT)
                        .set_diagonal_band_right_bound(0)));
  EXPECT_EQ(text_of(plain().set_sliding_window_length(5)),
            text_of(plain().set_diagonal_band_left_bound(5)));
  EXPECT_EQ(text_of(plain().set_causal_mask(true).set_diagonal_band_right_bound(0)),
            text_of(plain().set_causal_mask(true)));
}

TEST(Frontend, OldCausalSettersConflictLoudly) {
  const auto refused = [](fe::graph::SDPA_attributes attributes, const char* sentence) {
    Attention attention;
    attention.add(std::move(attributes));
    attention.expect_failure(fe::error_code_t::INVALID_VALUE, sentence);
  };
  refused(plain().set_causal_mask(true).set_diagonal_band_right_bound(3),
          "beside a right bound of 3");
  refused(plain().set_causal_mask(true).set_causal_mask_bottom_right(true), "are both set");
  refused(
      plain().set_causal_mask(true).set_diagonal_alignment(fe::DiagonalAlignment_t::BOTTOM_RIGHT),
      "other diagonal alignment");
  refused(plain().set_sliding_window_length(5).set_diagonal_band_left_bound(6),
          "is 5 beside a left bound of 6");
}

TEST(Frontend, EverySetterReachesTheGraph) {
  Attention attention;
  fe::graph::Graph& g = attention.graph;
  const auto scalar = [&](const char* name, fe::DataType_t type) {
    return g.tensor(Tensor_attributes()
                        .set_name(name)
                        .set_dim({1, 1, 1, 1})
                        .set_stride({1, 1, 1, 1})
                        .set_data_type(type));
  };
  const auto length = [&](const char* name, int64_t n) {
    return g.tensor(Tensor_attributes()
                        .set_name(name)
                        .set_dim({n, 1, 1, 1})
                        .set_stride({1, 1, 1, 1})
                        .set_data_type(fe::DataType_t::INT32));
  };
  const Tensor max = scalar("max", fe::DataType_t::FLOAT),
               sum = scalar("sum", fe::DataType_t::FLOAT),
               dump = scalar("dump", fe::DataType_t::FLOAT);
  attention.q->set_ragged_offset(length("offsets", B + 1)).set_ragged_offset_multiplier(64);
  attention.add(plain()
                    .set_attn_scale(scalar("scale", fe::DataType_t::FLOAT))
                    .set_bias(scalar("bias", fe::DataType_t::FLOAT))
                    .set_alibi_mask(true)
                    .set_padding_mask(true)
                    .set_seq_len_q(length("lq", B))
                    .set_cu_seq_len_kv(length("lkv", B + 1))
                    .set_max_total_seq_len_q(100)
                    .set_diagonal_band_left_bound(4)
                    .set_diagonal_band_right_bound(0)
                    .set_block_mask(scalar("blocks", fe::DataType_t::UINT8))
                    .set_dropout(0.125f, scalar("seed", fe::DataType_t::INT64),
                                 scalar("offset", fe::DataType_t::INT64))
                    .set_rng_dump(dump)
                    .set_sink_token(scalar("sink", fe::DataType_t::FLOAT))
                    .set_softmax_input_is_log2(true)
                    .set_implementation(fe::AttentionImplementation_t::UNIFIED)
                    .set_logit_max(max)
                    .set_score_sum_exp(sum)
                    .set_paged_attention_k_table(scalar("kt", fe::DataType_t::INT32))
                    .set_paged_attention_v_table(scalar("vt", fe::DataType_t::INT32))
                    .set_paged_attention_max_seq_len_kv(12));
  const std::string text = attention.text();
  for (const char* part : {"\"attn_scale_tensor\":",
                           "\"bias\":",
                           "\"alibi_mask\":true",
                           "\"padding_mask\":true",
                           "\"seq_len_q\":",
                           "\"cu_seq_len_kv\":",
                           "\"max_total_seq_len_q\":100",
                           "\"left_bound\":4",
                           "\"right_bound\":0",
                           "\"block_mask\":",
                           "\"probability\":0.125",
                           "\"seed\":",
                           "\"offset\":",
                           "\"rng_dump\":",
                           "\"sink\":",
                           "\"softmax_input_is_log2\":true",
                           "\"max\":",
                           "\"sum_exp\":",
                           "\"page_table_k\":",
                           "\"page_table_v\":",
                           "\"paged_max_seq_len_kv\":12",
                           "\"ragged_offset\":",
                           "\"ragged_offset_multiplier\":64"}) {
    EXPECT_NE(text.find(part), std::string::npos) << part << " in " << text;
  }
}

TEST(Frontend, BackwardAndRopes) {
  fe::graph::Graph graph = float_graph();
  const Tensor q = input(graph, "q", 1, {B, H, S, D}), k = input(graph, "k", 2, {B, H, S, D}),
               v = input(graph, "v", 3, {B, H, S, D});
  const Tensor o = input(graph, "o", 4, {B, H, S, D}), d_o = input(graph, "dO", 5, {B, H, S, D}),
               stats = input(graph, "stats", 6, {B, H, S, 1});
  const Tensor freqs = input(graph, "freqs", 7, {S, 1, 1, D});
  const Tensor bias = input(graph, "bias", 8, {1, H, S, S}),
               d_bias = input(graph, "dBias", 9, {1, H, S, S});
  const auto [dq, dk, dv] = graph.sdpa_backward(q, k, v, o, d_o, stats,
                                                fe::graph::SDPA_backward_attributes()
                                                    .set_name("bwd")
                                                    .set_bias(bias)
                                                    .set_dbias(d_bias)
                                                    .set_causal_mask(true)
                                                    .set_deterministic_algorithm(true)
                                                    .set_whole_rows(true));
  const Tensor dx = graph.rope_backward(
      dq, freqs, fe::graph::RoPE_backward_attributes().set_name("r").set_output_scale(0.5f));
  for (const Tensor& made : {dk, dv, dx}) made->set_output(true);
  const fe::error_t error = graph.validate();
  ASSERT_TRUE(error.is_good()) << error.get_message();
  EXPECT_EQ(dx->get_dim(), q->get_dim());
  EXPECT_TRUE(dq->get_is_virtual());
  std::string text;
  ASSERT_TRUE(graph.serialize(text).is_good());
  EXPECT_NE(text.find("\"deterministic\":true,\"whole_rows\":true"), std::string::npos);
  EXPECT_NE(text.find("\"output_scale\":0.5"), std::string::npos);
}

TEST(Frontend, BackwardTakesTheGradientOfStats) {
  fe::graph::Graph graph = float_graph();
  const Tensor q = input(graph, "q", 1, {B, H, S, D}), o = input(graph, "o", 2, {B, H, S, D});
  const Tensor stats = input(graph, "stats", 3, {B, H, S, 1}),
               d_stats = input(graph, "d_stats", 4, {B, H, S, 1});
  const auto [dq, dk, dv] = graph.sdpa_backward(
      q, q, q, o, o, stats, fe::graph::SDPA_backward_attributes().set_dstats(d_stats));
  for (const Tensor& made : {dq, dk, dv}) made->set_output(true);
  const fe::error_t error = graph.validate();
  ASSERT_TRUE(error.is_good()) << error.get_message();
  std::string text;
  ASSERT_TRUE(graph.serialize(text).is_good());
  EXPECT_NE(text.find("\"stats\":3,\"d_stats\":4"), std::string::npos) << text;
}

TEST(Frontend, BackwardTakesMaximumAndSumInPlaceOfStats) {
  fe::graph::Graph graph = float_graph();
  const Tensor q = input(graph, "q", 1, {B, H, S, D}), o = input(graph, "o", 2, {B, H, S, D});
  const Tensor max = input(graph, "max", 3, {B, H, S, 1}),
               sum = input(graph, "sum", 4, {B, H, S, 1});
  const auto [dq, dk, dv] = graph.sdpa_backward(
      q, q, q, o, o, nullptr,
      fe::graph::SDPA_backward_attributes().set_logit_max(max).set_score_sum_exp(sum));
  for (const Tensor& made : {dq, dk, dv}) made->set_output(true);
  const fe::error_t error = graph.validate();
  ASSERT_TRUE(error.is_good()) << error.get_message();
  std::string text;
  ASSERT_TRUE(graph.serialize(text).is_good());
  EXPECT_NE(text.find("\"max\":3,\"sum_exp\":4"), std::string::npos) << text;
  EXPECT_EQ(text.find("\"stats\""), std::string::npos) << text;
}

TEST(Frontend, RmsNormWithBackward) {
  fe::graph::Graph graph = float_graph();
  const Tensor x = input(graph, "x", 1, {8, 32, 1, 1}),
               scale = input(graph, "scale", 2, {1, 32, 1, 1}),
               dy = input(graph, "dy", 3, {8, 32, 1, 1});
  const auto [y, inv] = graph.rmsnorm(x, scale,
                                      fe::graph::Rmsnorm_attributes()
                                          .set_name("n")
                                          .set_forward_phase(fe::NormFwdPhase_t::TRAINING)
                                          .set_epsilon(graph.tensor(1e-5f)));
  const auto [dx, dscale, dbias] = graph.rmsnorm_backward(
      dy, x, scale, inv, fe::graph::Rmsnorm_backward_attributes().set_name("nb").has_dbias(false));
  for (const Tensor& made : {y, inv, dx, dscale}) made->set_output(true);
  EXPECT_EQ(dbias, nullptr);
  const fe::error_t error = graph.validate();
  ASSERT_TRUE(error.is_good()) << error.get_message();
  EXPECT_EQ(inv->get_dim(), (std::vector<int64_t>{8, 1, 1, 1}));

  fe::graph::Graph unsaid = float_graph();
  unsaid.rmsnorm(x, scale, fe::graph::Rmsnorm_attributes().set_epsilon(unsaid.tensor(1e-5f)));
  EXPECT_NE(unsaid.validate().get_message().find("Forward phase not set of rmsnorm node."),
            std::string::npos);
  fe::graph::Graph unsaid_backward = float_graph();
  unsaid_backward.rmsnorm_backward(dy, x, scale, inv, fe::graph::Rmsnorm_backward_attributes());
  EXPECT_NE(unsaid_backward.validate().get_message().find("has_dbias is not set"),
            std::string::npos);
}

TEST(Frontend, LayerNormWithBackward) {
  fe::graph::Graph graph = float_graph();
  const Tensor x = input(graph, "x", 1, {8, 32, 1, 1}),
               scale = input(graph, "scale", 2, {1, 32, 1, 1}),
               bias = input(graph, "bias", 3, {1, 32, 1, 1}),
               dy = input(graph, "dy", 4, {8, 32, 1, 1});
  const auto [y, mean, inv] = graph.layernorm(x, scale, bias,
                                              fe::graph::Layernorm_attributes()
                                                  .set_name("n")
                                                  .set_forward_phase(fe::NormFwdPhase_t::TRAINING)
                                                  .set_epsilon(graph.tensor(1e-5f)));
  const auto [dx, dscale, dbias] = graph.layernorm_backward(
      dy, x, scale,
      fe::graph::Layernorm_backward_attributes().set_name("nb").set_saved_mean_and_inv_variance(
          mean, inv));
  for (const Tensor& made : {y, mean, inv, dx, dscale, dbias}) made->set_output(true);
  const fe::error_t error = graph.validate();
  ASSERT_TRUE(error.is_good()) << error.get_message();
  EXPECT_EQ(mean->get_dim(), (std::vector<int64_t>{8, 1, 1, 1}));
  EXPECT_EQ(dbias->get_dim(), (std::vector<int64_t>{1, 32, 1, 1}));

  // Inference gives Y alone; epsilon may be a number, and there may be no bias.
  fe::graph::Graph inference = float_graph();
  const auto made = inference.layernorm(input(inference, "x", 1, {8, 32, 1, 1}),
                                        input(inference, "scale", 2, {1, 32, 1, 1}), nullptr,
                                        fe::graph::Layernorm_attributes()
                                            .set_forward_phase(fe::NormFwdPhase_t::INFERENCE)
                                            .set_epsilon(0.5f));
  made[0]->set_output(true);
  EXPECT_EQ(made[1], nullptr);
  EXPECT_EQ(made[2], nullptr);
  std::string text;
  ASSERT_TRUE(inference.validate().is_good()) << inference.validate().get_message();
  ASSERT_TRUE(inference.serialize(text).is_good());
  EXPECT_NE(text.find("\"op\":\"layer_norm\""), std::string::npos) << text;
  EXPECT_NE(text.find("\"constant\":0.5"), std::string::npos) << text;

  fe::graph::Graph unsaid = float_graph();
  unsaid.layernorm(x, scale, bias, fe::graph::Layernorm_attributes().set_epsilon(1e-5f));
  EXPECT_NE(unsaid.validate().get_message().find("Forward phase not set of layernorm node."),
            std::string::npos);
  fe::graph::Graph unsaid_backward = float_graph();
  unsaid_backward.layernorm_backward(dy, x, scale, fe::graph::Layernorm_backward_attributes());
  EXPECT_NE(unsaid_backward.validate().get_message().find("requires a tensor for mean"),
            std::string::npos)
      << unsaid_backward.validate().get_message();
}

/// y = x where the mask says so, else its row; from wherever an op stands.
TEST(Frontend, PointwiseOpsOutsideAScoreModifierRun) {
  using fe::PointwiseMode_t;
  using fe::graph::Pointwise_attributes;
  fe::graph::Graph g;
  g.set_io_data_type(fe::DataType_t::FLOAT).set_intermediate_data_type(fe::DataType_t::FLOAT);
  const auto tensor = [&](const char* name, fe::DataType_t type) {
    return g.tensor(fe::graph::Tensor_attributes()
                        .set_name(name)
                        .set_dim({3, 4})
                        .set_stride({4, 1})
                        .set_data_type(type));
  };
  const Tensor x = tensor("x", fe::DataType_t::FLOAT), limit = g.tensor(0.5f);
  const Tensor mask =
      g.pointwise(x, limit, Pointwise_attributes().set_mode(PointwiseMode_t::CMP_LT));
  const Tensor row =
      g.pointwise(x, Pointwise_attributes().set_mode(PointwiseMode_t::GEN_INDEX).set_axis(0));
  const Tensor y =
      g.pointwise(x, row, mask, Pointwise_attributes().set_mode(PointwiseMode_t::BINARY_SELECT));
  y->set_output(true);
  const fe::error_t built = g.build({}, {fe::HeurMode_t::A});
  ASSERT_TRUE(built.is_good()) << built.get_message();
  float in[12], out[12];
  for (int n = 0; n < 12; ++n) in[n] = static_cast<float>(n % 3) - 0.75f;
  std::vector<char> workspace(static_cast<size_t>(g.get_workspace_size()));
  const fe::error_t run =
      g.execute({}, std::unordered_map<Tensor, void*>{{x, in}, {y, out}}, workspace.data());
  ASSERT_TRUE(run.is_good()) << run.get_message();
  for (int n = 0; n < 12; ++n)
    EXPECT_EQ(out[n], in[n] < 0.5f ? in[n] : static_cast<float>(n / 4)) << n;
}

/// A clipped ReLU with a slope, and what of a gradient passes through it.
TEST(Frontend, ActivationsOutsideAScoreModifierHaveTheirNumbers) {
  using fe::PointwiseMode_t;
  fe::graph::Graph g;
  g.set_io_data_type(fe::DataType_t::FLOAT).set_intermediate_data_type(fe::DataType_t::FLOAT);
  const auto tensor = [&](const char* name) {
    return g.tensor(fe::graph::Tensor_attributes().set_name(name).set_dim({6}).set_stride({1}));
  };
  const auto relu = [](PointwiseMode_t mode) {
    return fe::graph::Pointwise_attributes()
        .set_mode(mode)
        .set_relu_lower_clip(-1)
        .set_relu_upper_clip(2)
        .set_relu_lower_clip_slope(0.5f);
  };
  const Tensor x = tensor("x"), dy = tensor("dy");
  const Tensor y = g.pointwise(x, relu(PointwiseMode_t::RELU_FWD));
  const Tensor dx = g.pointwise(dy, x, relu(PointwiseMode_t::RELU_BWD));
  y->set_output(true), dx->set_output(true);
  const fe::error_t built = g.build({}, {fe::HeurMode_t::A});
  ASSERT_TRUE(built.is_good()) << built.get_message();
  float in[] = {-5, -1, -0.5f, 0, 1.5f, 3}, gradient[] = {2, 4, 6, 8, 10, 12}, out[6], back[6];
  std::vector<char> workspace(static_cast<size_t>(g.get_workspace_size()));
  const fe::error_t run = g.execute(
      {}, std::unordered_map<Tensor, void*>{{x, in}, {dy, gradient}, {y, out}, {dx, back}},
      workspace.data());
  ASSERT_TRUE(run.is_good()) << run.get_message();
  const float clipped[] = {-3, -1, -0.5f, 0, 1.5f, 2}, passed[] = {1, 2, 6, 8, 10, 0};
  for (int n = 0; n < 6; ++n) {
    EXPECT_EQ(out[n], clipped[n]) << n;
    EXPECT_EQ(back[n], passed[n]) << n;
  }
}

TEST(Frontend, PointwiseOpsWithoutAModeAreRefused) {
  fe::graph::Graph g;
  g.set_io_data_type(fe::DataType_t::FLOAT).set_intermediate_data_type(fe::DataType_t::FLOAT);
  const Tensor x = g.tensor(fe::graph::Tensor_attributes().set_dim({3}).set_stride({1}));
  g.pointwise(x, fe::graph::Pointwise_attributes())->set_output(true);
  EXPECT_NE(g.validate().get_message().find("The field 'mode' is ''"), std::string::npos);
}

TEST(Frontend, DeclinesByNameWhatItDoesNotServe) {
  Attention half;
  half.add(plain().set_softmax_precision(fe::DataType_t::HALF));
  half.expect_failure(fe::error_code_t::GRAPH_NOT_SUPPORTED, "softmax_precision is not FLOAT");
  Attention reordered;
  reordered.q->set_reordering_type(fe::TensorReordering_t::F8_128x4);
  reordered.add(plain());
  reordered.expect_failure(fe::error_code_t::GRAPH_NOT_SUPPORTED, "'q' has a reordering type");
}

TEST(Frontend, DuplicateUidNamesTheTensor) {
  Attention attention;
  attention.k->set_uid(1);
  attention.add(plain());
  attention.expect_failure(fe::error_code_t::INVALID_VALUE, "uid 1 is given to two tensors");
}

// One token of 4 heads on 2 joins an int8 cache that attention then reads: numbers by hand.
TEST(Frontend, NewRowsJoinACacheAndAreAttendedTo) {
  fe::graph::Graph graph = float_graph();
  const Tensor qkv = input(graph, "qkv", 1, {1, 3, 1, 8});
  const Tensor past_k = input(graph, "past_k", 2, {1, 1, 4, 8}),
               past_v = input(graph, "past_v", 3, {1, 1, 4, 8});
  for (const Tensor& past : {past_k, past_v}) past->set_data_type(fe::DataType_t::INT8);
  const Tensor last = input(graph, "last", 4, {1, 1, 1, 1});
  last->set_data_type(fe::DataType_t::INT32);
  const Tensor scale = input(graph, "scale", 5, {1, 1, 1, 1});
  const auto [q, k, v, q_lengths, kv_lengths] =
      graph.cache_append(qkv, nullptr, nullptr,
                         fe::graph::Cache_append_attributes()
                             .set_name("append")
                             .set_past(past_k, past_v)
                             .set_seq_len_kv(last, 1)
                             .set_scales(scale, scale));
  k->set_output(true).set_uid(6);
  v->set_output(true).set_uid(7);
  const auto attended = graph.sdpa(q, k, v,
                                   fe::graph::SDPA_attributes()
                                       .set_name("attention")
                                       .set_generate_stats(false)
                                       .set_scales(scale, scale)
                                       .set_padding_mask(true)
                                       .set_seq_len_q(q_lengths)
                                       .set_seq_len_kv(kv_lengths));
  const Tensor& o = attended[0];
  o->set_output(true).set_uid(8);
  fe::Handle cpu;
  const fe::error_t built = graph.build(cpu, {fe::HeurMode_t::A});
  ASSERT_TRUE(built.is_good()) << built.get_message();
  std::vector<float> row(24, 0), output(8, NAN);
  for (int d = 0; d < 8; ++d)
    row[static_cast<size_t>(16 + d)] = static_cast<float>(d);  // V; Q is 0
  std::vector<int8_t> keys(32, 0), values(32, 0);
  for (int d = 0; d < 8; ++d) values[static_cast<size_t>(d)] = 4;
  int32_t place = 1;  // of the new token: behind one that is there
  float unit = 0.5f;
  std::vector<char> workspace(static_cast<size_t>(graph.get_workspace_size()));
  const fe::error_t run = graph.execute(cpu,
                                        {{1, row.data()},
                                         {2, keys.data()},
                                         {3, values.data()},
                                         {4, &place},
                                         {5, &unit},
                                         {6, keys.data()},
                                         {7, values.data()},
                                         {8, output.data()}},
                                        workspace.data());
  ASSERT_TRUE(run.is_good()) << run.get_message();
  for (int d = 0; d < 8; ++d) {
    EXPECT_EQ(values[static_cast<size_t>(8 + d)], 2 * d);
    EXPECT_NEAR(output[static_cast<size_t>(d)], (2 + d) / 2.0, 1e-6);
  }
}

TEST(Frontend, IsAGroupQueryAttention) {
  heddle_gqa node;
  heddle_gqa_set_defaults(&node);
  const auto set = [&](int n, heddle_dtype type, std::vector<int64_t> dims) {
    node.inputs[n].dtype = type, node.inputs[n].rank = static_cast<int32_t>(dims.size());
    std::copy(dims.begin(), dims.end(), node.inputs[n].dims);
  };
  set(HEDDLE_GQA_QUERY, HEDDLE_F32, {2, 5, 8 * 16});
  set(HEDDLE_GQA_SEQLENS_K, HEDDLE_I32, {2});
  set(HEDDLE_GQA_TOTAL_SEQUENCE_LENGTH, HEDDLE_I32, {1});
  node.num_heads = 4, node.kv_num_heads = 2, node.total_sequence_length = 5;
  fe::graph::Graph graph;
  const fe::error_t good = graph.group_query_attention(node);
  ASSERT_TRUE(good.is_good()) << good.get_message();
  const fe::error_t built = graph.build({}, {fe::HeurMode_t::A});
  ASSERT_TRUE(built.is_good()) << built.get_message();
  node.kv_num_heads = 3;
  const fe::error_t bad = graph.group_query_attention(node);
  EXPECT_EQ(bad.get_code(), fe::error_code_t::INVALID_VALUE);
  EXPECT_NE(bad.get_message().find("num_heads must be a multiple of kv_num_heads"),
            std::string::npos);
}

}  // namespace
