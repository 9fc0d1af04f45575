// Attention programs under cuDNN frontend's names, as its users write them: the include is the one
// line that is Heddle's.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <functional>
#include <map>

#include "attention_f64.h"
#include "heddle/cudnn_frontend.h"

namespace fe = cudnn_frontend;

namespace {

using heddle::testing::AttentionF64;
using Cell = AttentionF64::Cell;
using Tensor = std::shared_ptr<fe::graph::Tensor_attributes>;
using Pack = std::unordered_map<fe::graph::Tensor_attributes::uid_t, void*>;

constexpr int64_t B = 2, HQ = 4, HK = 2, SQ = 9, SKV = 13, D = 16;

enum Uid : int64_t { Q, K, V, O, STATS, BIAS, LENGTHS_Q, LENGTHS_KV, DO, DQ, DK, DV, OTHER, LAST };

class CudnnAttention : public ::testing::Test {
 protected:
  void SetUp() override {
    setenv("HEDDLE_DEVICE", "cpu", 1);
    ASSERT_EQ(cudnnCreate(&handle), CUDNN_STATUS_SUCCESS);
    unsetenv("HEDDLE_DEVICE");
  }
  void TearDown() override { EXPECT_EQ(cudnnDestroy(handle), CUDNN_STATUS_SUCCESS); }

  static std::shared_ptr<fe::graph::Graph> new_graph() {
    auto graph = std::make_shared<fe::graph::Graph>();
    graph->set_io_data_type(fe::DataType_t::FLOAT)
        .set_intermediate_data_type(fe::DataType_t::FLOAT)
        .set_compute_data_type(fe::DataType_t::FLOAT);
    return graph;
  }
  static std::vector<int64_t> row_major(const std::vector<int64_t>& dim) {
    std::vector<int64_t> stride(dim.size(), 1);
    for (size_t i = dim.size() - 1; i > 0; --i) stride[i - 1] = stride[i] * dim[i];
    return stride;
  }
  Tensor tensor(const char* name, int64_t uid, std::vector<int64_t> dim,
                fe::DataType_t type = fe::DataType_t::FLOAT) {
    return graph->tensor(fe::graph::Tensor_attributes()
                             .set_name(name)
                             .set_uid(uid)
                             .set_dim(dim)
                             .set_stride(row_major(dim))
                             .set_data_type(type));
  }
  void make_inputs(bool backward = false) {
    q = tensor("Q", Q, {B, HQ, SQ, D});
    k = tensor("K", K, {B, HK, SKV, D});
    v = tensor("V", V, {B, HK, SKV, D});
    pack = {{Q, truth.q.data()}, {K, truth.k.data()}, {V, truth.v.data()}};
    if (!backward) return;
    o = tensor("O", O, {B, HQ, SQ, D});
    d_o = tensor("dO", DO, {B, HQ, SQ, D});
    stats = tensor("Stats", STATS, {B, HQ, SQ, 1});
  }
  /// Adds the op, with Stats, and binds its results.
  void add_forward(fe::graph::SDPA_attributes options) {
    auto [made, made_stats] = graph->sdpa(q, k, v, options.set_generate_stats(true));
    made->set_output(true).set_dim({B, HQ, SQ, D}).set_stride(row_major({B, HQ, SQ, D})).set_uid(O);
    made_stats->set_output(true).set_data_type(fe::DataType_t::FLOAT).set_uid(STATS);
    pack[O] = found_o.data(), pack[STATS] = found_stats.data();
  }
  void add_backward(fe::graph::SDPA_backward_attributes options) {
    const auto gradients = graph->sdpa_backward(q, k, v, o, d_o, stats, std::move(options));
    int64_t uid = DQ;
    for (const Tensor& gradient : gradients) gradient->set_output(true).set_uid(uid++);
    truth.compute();
    given_o.assign(truth.o.begin(), truth.o.end());
    given_stats.assign(truth.stats.begin(), truth.stats.end());
    pack[O] = given_o.data(), pack[STATS] = given_stats.data(), pack[DO] = truth.d_o.data();
    pack[DQ] = found_dq.data(), pack[DK] = found_dk.data(), pack[DV] = found_dv.data();
  }
  void run() {
    fe::error_t error = graph->validate();
    ASSERT_TRUE(error.is_good()) << error.get_message();
    error = graph->build_operation_graph(handle);
    ASSERT_TRUE(error.is_good()) << error.get_message();
    error = graph->create_execution_plans({fe::HeurMode_t::A, fe::HeurMode_t::FALLBACK});
    ASSERT_TRUE(error.is_good()) << error.get_message();
    ASSERT_TRUE(graph->check_support(handle).is_good());
    ASSERT_TRUE(graph->build_plans(handle, fe::BuildPlanPolicy_t::ALL).is_good());
    int64_t bytes = -1;
    ASSERT_TRUE(graph->get_workspace_size(bytes).is_good());
    workspace.resize(static_cast<size_t>(bytes));
    error = graph->execute(handle, pack, workspace.data());
    ASSERT_TRUE(error.is_good()) << error.get_message();
  }
  static void expect_near(const std::vector<float>& found, const std::vector<double>& wanted,
                          double tolerance = 2e-5) {
    ASSERT_EQ(found.size(), wanted.size());
    for (size_t i = 0; i < found.size(); ++i) {
      if (std::isinf(wanted[i])) {
        ASSERT_EQ(found[i], wanted[i]) << i;
      } else {
        ASSERT_NEAR(found[i], wanted[i], tolerance) << i;
      }
    }
  }
  void expect_forward() {
    truth.compute();
    run();
    expect_near(found_o, truth.o);
    expect_near(found_stats, truth.stats);
  }
  void expect_backward() {
    run();
    expect_near(found_dq, truth.d_q, 1e-4);
    expect_near(found_dk, truth.d_k, 1e-4);
    expect_near(found_dv, truth.d_v, 1e-4);
  }

  cudnnHandle_t handle = nullptr;
  std::shared_ptr<fe::graph::Graph> graph = new_graph();
  AttentionF64 truth{B, HQ, HK, SQ, SKV, D};
  Tensor q, k, v, o, d_o, stats;
  Pack pack;
  std::vector<float> found_o = std::vector<float>(truth.q.size(), NAN), found_dq = found_o,
                     found_dk = std::vector<float>(truth.k.size(), NAN), found_dv = found_dk,
                     found_stats = std::vector<float>(B * HQ * SQ, NAN), given_o, given_stats;
  std::vector<char> workspace;
};

using Options = fe::graph::SDPA_attributes;
using BackwardOptions = fe::graph::SDPA_backward_attributes;

// Q has the uid 0, as enumerations of uids begin.
TEST_F(CudnnAttention, ForwardWithCausalMaskPaddingAndBias) {
  make_inputs();
  std::vector<int32_t> lengths_q{5, SQ}, lengths_kv{7, 4};
  std::vector<float> bias = AttentionF64::random(B * SQ * SKV, 9);
  Options options = Options().set_name("attention").set_attn_scale(0.3f);
  options.set_diagonal_alignment(cudnn_frontend::DiagonalAlignment_t::TOP_LEFT)
      .set_diagonal_band_right_bound(0);
  options.set_bias(tensor("bias", BIAS, {B, 1, SQ, SKV}));
  options.set_padding_mask(true)
      .set_seq_len_q(tensor("lengths", LENGTHS_Q, {B, 1, 1, 1}, fe::DataType_t::INT32))
      .set_seq_len_kv(tensor("lengths", LENGTHS_KV, {B, 1, 1, 1}, fe::DataType_t::INT32));
  add_forward(options);
  pack[BIAS] = bias.data();
  pack[LENGTHS_Q] = lengths_q.data(), pack[LENGTHS_KV] = lengths_kv.data();
  pack[LAST] = nullptr;  // what the graph does not know is passed over
  truth.scale = 0.3;
  truth.score = [&](const Cell& c, double s) {
    const bool seen = c.j <= c.i && c.i < lengths_q[static_cast<size_t>(c.b)] &&
                      c.j < lengths_kv[static_cast<size_t>(c.b)];
    return seen ? s + bias[static_cast<size_t>((c.b * SQ + c.i) * SKV + c.j)] : -INFINITY;
  };
  expect_forward();
  pack.erase(Q);
  const fe::error_t missing = graph->execute(handle, pack, workspace.data());
  EXPECT_EQ(missing.get_code(), fe::error_code_t::INVALID_VARIANT_PACK);
  EXPECT_EQ(missing.get_message(), "Uid 0 not found in variant pack.");
}

TEST_F(CudnnAttention, TwoTensorsOfUid0AreRefused) {
  make_inputs();
  v->set_uid(0);
  add_forward(Options().set_attn_scale(0.3f));
  EXPECT_EQ(graph->validate().get_code(), fe::error_code_t::INVALID_VALUE);
  EXPECT_NE(graph->validate().get_message().find("uid 0"), std::string::npos)
      << graph->validate().get_message();
}

Tensor soft_cap_and_bias(std::shared_ptr<fe::graph::Graph> inner, Tensor score, Tensor bias,
                         Tensor cap) {
  using fe::graph::Pointwise_attributes;
  const Tensor biased = fe::graph::attn::score_modifiers::bias(inner, score, bias);
  const Tensor ratio = inner->pointwise(
      biased, cap, Pointwise_attributes().set_name("ratio").set_mode(fe::PointwiseMode_t::DIV));
  const Tensor bent = inner->pointwise(
      ratio, Pointwise_attributes().set_name("bent").set_mode(fe::PointwiseMode_t::TANH_FWD));
  return inner->pointwise(
      bent, cap, Pointwise_attributes().set_name("capped").set_mode(fe::PointwiseMode_t::MUL));
}

TEST_F(CudnnAttention, ScoresBoundByAFunctionOfTheProgram) {
  make_inputs();
  std::vector<float> bias = AttentionF64::random(B * SQ * SKV, 9);
  const Tensor cap = graph->tensor(0.8f), added = tensor("bias", BIAS, {B, 1, SQ, SKV});
  add_forward(Options().set_name("a").set_attn_scale(0.3f).set_score_mod(
      std::bind(soft_cap_and_bias, std::placeholders::_1, std::placeholders::_2, added, cap)));
  pack[BIAS] = bias.data();
  truth.scale = 0.3;
  truth.score = [&](const Cell& c, double s) {
    return 0.8f * std::tanh((s + bias[static_cast<size_t>((c.b * SQ + c.i) * SKV + c.j)]) / 0.8f);
  };
  expect_forward();
}

TEST_F(CudnnAttention, ReadyMadeScoreModifiers) {
  namespace modifiers = fe::graph::attn::score_modifiers;
  std::vector<int32_t> lengths_q{5, SQ}, lengths_kv{7, 11};
  Tensor of_q, of_kv;
  const auto with_lengths = [&] {
    of_q = tensor("lengths_q", LENGTHS_Q, {B, 1, 1, 1}, fe::DataType_t::INT32);
    of_kv = tensor("lengths_kv", LENGTHS_KV, {B, 1, 1, 1}, fe::DataType_t::INT32);
    pack[LENGTHS_Q] = lengths_q.data(), pack[LENGTHS_KV] = lengths_kv.data();
  };
  using Inner = std::shared_ptr<fe::graph::Graph>;
  struct Modifier {
    const char* name;
    std::function<Tensor(Inner, Tensor)> function;
    std::function<bool(const Cell&)> sees;
  };
  const auto offset = [&](const Cell& c) {
    return lengths_kv[static_cast<size_t>(c.b)] - lengths_q[static_cast<size_t>(c.b)];
  };
  const Modifier all[] = {
      {"causal", modifiers::causal_mask, [](const Cell& c) { return c.j <= c.i; }},
      {"bottom right of dims",
       [](Inner g, Tensor s) {
         return modifiers::causal_mask_bottom_right(g, s, SQ, SKV, nullptr, nullptr);
       },
       [](const Cell& c) { return c.j <= c.i + SKV - SQ; }},
      {"bottom right of lengths",
       [&](Inner g, Tensor s) {
         return modifiers::causal_mask_bottom_right(g, s, SQ, SKV, of_q, of_kv);
       },
       [&](const Cell& c) { return c.j <= c.i + offset(c); }},
      {"window",
       [](Inner g, Tensor s) {
         return modifiers::sliding_window_mask(g, s, fe::DiagonalAlignment_t::TOP_LEFT, 3, 2, 0, 0,
                                               nullptr, nullptr);
       },
       [](const Cell& c) { return c.j <= c.i + 2 && c.j > c.i - 3; }},
      {"padding", [&](Inner g, Tensor s) { return modifiers::padding_mask(g, s, of_kv, of_q); },
       [&](const Cell& c) {
         return c.i < lengths_q[static_cast<size_t>(c.b)] &&
                c.j < lengths_kv[static_cast<size_t>(c.b)];
       }},
  };
  for (const Modifier& modifier : all) {
    SCOPED_TRACE(modifier.name);
    graph = new_graph();
    make_inputs();
    with_lengths();
    add_forward(Options().set_attn_scale(0.3f).set_score_mod(modifier.function));
    truth.scale = 0.3;
    truth.score = [&](const Cell& c, double s) { return modifier.sees(c) ? s : -INFINITY; };
    expect_forward();
  }
}

TEST_F(CudnnAttention, DropoutByAMaskAndAScaleInEitherOrder) {
  std::vector<float> mask(B * HQ * SQ * SKV), scale{1.25f};
  for (size_t i = 0; i < mask.size(); ++i) mask[i] = i * 7 % 5 == 0 ? 0.0f : 1.0f;
  truth.kept = [&](const Cell& c) {
    return 1.25 * mask[static_cast<size_t>(((c.b * HQ + c.h) * SQ + c.i) * SKV + c.j)];
  };
  for (bool scale_first : {false, true}) {
    graph = new_graph();
    make_inputs();
    const Tensor of_mask = tensor("mask", BIAS, {B, HQ, SQ, SKV});
    const Tensor of_scale = tensor("scale", OTHER, {1, 1, 1, 1});
    of_scale->set_is_pass_by_value(true);
    Options options;
    if (scale_first) {
      options.set_dropout(of_scale, of_mask);
    } else {
      options.set_dropout(of_mask, of_scale);
    }
    add_forward(options);
    pack[BIAS] = mask.data(), pack[OTHER] = scale.data();
    expect_forward();
  }
}

TEST_F(CudnnAttention, BackwardWithCausalMaskAndBias) {
  make_inputs(true);
  std::vector<float> bias = AttentionF64::random(SQ * SKV, 9), d_bias(bias.size(), NAN);
  std::vector<double> wanted(bias.size(), 0);
  BackwardOptions options = BackwardOptions().set_name("backward").set_attn_scale(0.3f);
  options.set_causal_mask(true).set_deterministic_algorithm(true);
  options.set_bias(tensor("bias", BIAS, {1, 1, SQ, SKV}));
  options.set_dbias(tensor("dbias", OTHER, {1, 1, SQ, SKV}));
  truth.scale = 0.3;
  truth.score = [&](const Cell& c, double s) {
    return c.j <= c.i ? s + bias[static_cast<size_t>(c.i * SKV + c.j)] : -INFINITY;
  };
  truth.note = [&](const Cell& c, double d) { wanted[static_cast<size_t>(c.i * SKV + c.j)] += d; };
  add_backward(options);
  pack[BIAS] = bias.data(), pack[OTHER] = d_bias.data();
  expect_backward();
  expect_near(d_bias, wanted, 1e-4);
}

// dBias is summed where it has 1, whatever the bias has.
TEST_F(CudnnAttention, BackwardWithADBiasOfDimsOfItsOwn) {
  const auto at = [](const std::vector<int64_t>& dims, const Cell& c) {
    const int64_t index[] = {c.b, c.h, c.i, c.j};
    int64_t place = 0;
    for (size_t n = 0; n < 4; ++n) place = place * dims[n] + (dims[n] == 1 ? 0 : index[n]);
    return static_cast<size_t>(place);
  };
  const auto count = [](const std::vector<int64_t>& dims) {
    return dims[0] * dims[1] * dims[2] * dims[3];
  };
  truth.scale = 0.3;
  const std::pair<std::vector<int64_t>, std::vector<int64_t>> all[] = {
      {{B, 1, SQ, SKV}, {1, HQ, SQ, SKV}}, {{1, 1, SQ, SKV}, {B, HQ, SQ, SKV}},
      {{B, HQ, SQ, SKV}, {1, 1, 1, 1}},    {{1, HQ, 1, SKV}, {B, 1, SQ, 1}},
      {{1, 1, 1, 1}, {1, HQ, 1, SKV}},
  };
  for (const auto& [dims, d_dims] : all) {
    SCOPED_TRACE(::testing::PrintToString(d_dims));
    std::vector<float> bias = AttentionF64::random(count(dims), 9),
                       d_bias(static_cast<size_t>(count(d_dims)), NAN);
    std::vector<double> wanted(d_bias.size(), 0);
    graph = new_graph();
    make_inputs(true);
    truth.score = [&, dims = dims](const Cell& c, double s) {
      return c.j <= c.i ? s + bias[at(dims, c)] : -INFINITY;
    };
    truth.note = [&, d_dims = d_dims](const Cell& c, double d) { wanted[at(d_dims, c)] += d; };
    BackwardOptions options = BackwardOptions().set_attn_scale(0.3f).set_causal_mask(true);
    add_backward(
        options.set_bias(tensor("bias", BIAS, dims)).set_dbias(tensor("dbias", OTHER, d_dims)));
    pack[BIAS] = bias.data(), pack[OTHER] = d_bias.data();
    expect_backward();
    expect_near(d_bias, wanted, 2e-4);
  }
}

// At other sizes it follows from the scores, not from the bias.
TEST_F(CudnnAttention, SizesWithADBiasOfDimsOfItsOwn) {
  make_inputs(true);
  truth.scale = 0.3;
  std::vector<float> bias = AttentionF64::random(3 * SQ * SKV, 9),
                     d_bias(static_cast<size_t>(HQ * SQ * SKV), NAN);
  add_backward(BackwardOptions()
                   .set_attn_scale(0.3f)
                   .set_bias(tensor("bias", BIAS, {B, 1, SQ, SKV}))
                   .set_dbias(tensor("dbias", OTHER, {1, HQ, SQ, SKV})));
  pack[BIAS] = bias.data(), pack[OTHER] = d_bias.data();
  run();
  constexpr int64_t kBatch = 3;
  AttentionF64 other(kBatch, HQ, HK, SQ, SKV, D);
  other.scale = 0.3;
  std::vector<double> wanted(d_bias.size(), 0);
  other.score = [&](const Cell& c, double s) {
    return s + bias[static_cast<size_t>((c.b * SQ + c.i) * SKV + c.j)];
  };
  other.note = [&](const Cell& c, double d) {
    wanted[static_cast<size_t>((c.h * SQ + c.i) * SKV + c.j)] += d;
  };
  other.compute();
  std::vector<float> o_there(other.o.begin(), other.o.end()),
      stats_there(other.stats.begin(), other.stats.end()), dq(other.q.size()), dk(other.k.size()),
      dv(other.v.size());
  Pack there{{Q, other.q.data()}, {K, other.k.data()},    {V, other.v.data()},
             {O, o_there.data()}, {DO, other.d_o.data()}, {STATS, stats_there.data()},
             {BIAS, bias.data()}, {OTHER, d_bias.data()}, {DQ, dq.data()},
             {DK, dk.data()},     {DV, dv.data()}};
  const auto at_batch = [&](int64_t batch, const Pack& there) {
    const std::vector<int64_t> uids{Q, K, V, O, DO, STATS, BIAS};
    const std::vector<int64_t> rows{batch, HQ, SQ, D}, keys{batch, HK, SKV, D};
    const std::vector<std::vector<int64_t>> shapes{
        rows, keys, keys, rows, rows, {batch, HQ, SQ, 1}, {batch, 1, SQ, SKV}};
    const std::vector<std::vector<int64_t>> strides(uids.size());
    int64_t bytes = 0;
    const fe::error_t error = graph->get_workspace_size(handle, bytes, uids, shapes, strides);
    EXPECT_TRUE(error.is_good()) << error.get_message();
    workspace.resize(static_cast<size_t>(bytes));
    return graph->execute(handle, there, workspace.data(), uids, shapes, strides);
  };
  const fe::error_t larger = at_batch(kBatch, there);
  ASSERT_TRUE(larger.is_good()) << larger.get_message();
  expect_near(d_bias, wanted, 1e-4);
  expect_near(dq, other.d_q, 1e-4);
  // Of the first entry, with the plan's own kernels: dBias is what it was planned to be a sum of.
  std::fill(wanted.begin(), wanted.end(), 0);
  std::fill(d_bias.begin(), d_bias.end(), NAN);
  AttentionF64 first(1, HQ, HK, SQ, SKV, D);
  first.q.assign(other.q.begin(), other.q.begin() + HQ * SQ * D);
  first.d_o.assign(other.d_o.begin(), other.d_o.begin() + HQ * SQ * D);
  first.k.assign(other.k.begin(), other.k.begin() + HK * SKV * D);
  first.v.assign(other.v.begin(), other.v.begin() + HK * SKV * D);
  first.scale = 0.3, first.score = other.score, first.note = other.note;
  first.compute();
  const fe::error_t smaller = at_batch(1, there);
  ASSERT_TRUE(smaller.is_good()) << smaller.get_message();
  expect_near(d_bias, wanted, 1e-4);
}

// The derivative reads what the score modifier made.
TEST_F(CudnnAttention, BackwardThroughTheReadyMadeSoftCap) {
  using fe::graph::attn::score_modifiers::Softcap;
  using std::placeholders::_1, std::placeholders::_2;
  truth.scale = 0.3;
  truth.score = [](const Cell&, double s) { return 0.8f * std::tanh(s / 0.8f); };
  truth.slope = [](const Cell&, double s) { return 1 - std::pow(std::tanh(s / 0.8f), 2); };
  for (bool derived : {false, true}) {
    graph = new_graph();
    make_inputs(true);
    const Tensor cap = graph->tensor(0.8f);
    const auto softcap = std::make_shared<Softcap>();
    BackwardOptions options = BackwardOptions().set_attn_scale(0.3f).set_score_mod(
        std::bind(&Softcap::forward, softcap, _1, _2, cap));
    if (!derived) options.set_score_mod_bprop(std::bind(&Softcap::backward, softcap, _1, _2, cap));
    add_backward(options);
    expect_backward();
  }
}

// By the derivative that is found, and by the program's own.
TEST_F(CudnnAttention, BackwardThroughActivations) {
  using Inner = std::shared_ptr<fe::graph::Graph>;
  using fe::PointwiseMode_t;
  using fe::graph::Pointwise_attributes;
  const auto sigmoid = [](double s) { return 1 / (1 + std::exp(-s)); };
  const auto check = [&](const Pointwise_attributes& forward, const Pointwise_attributes& backward,
                         const std::function<double(double)>& score) {
    truth.score = [&](const Cell&, double s) { return score(s); };
    truth.slope = [&](const Cell&, double s) { return (score(s + 1e-6) - score(s - 1e-6)) / 2e-6; };
    for (bool is_given : {false, true}) {
      graph = new_graph();
      make_inputs(true);
      Tensor before;
      BackwardOptions options = BackwardOptions().set_score_mod(
          [&](Inner inner, Tensor s) { return inner->pointwise(before = s, forward); });
      if (is_given)
        options.set_score_mod_bprop([&](Inner inner, Tensor gradient) {
          return inner->pointwise(gradient, before, backward);
        });
      add_backward(options);
      expect_backward();
    }
  };
  const auto of = [](PointwiseMode_t mode) { return Pointwise_attributes().set_mode(mode); };
  check(of(PointwiseMode_t::SIGMOID_FWD), of(PointwiseMode_t::SIGMOID_BWD), sigmoid);
  check(of(PointwiseMode_t::SWISH_FWD).set_swish_beta(1.5f),
        of(PointwiseMode_t::SWISH_BWD).set_swish_beta(1.5f),
        [&](double s) { return s * sigmoid(1.5 * s); });
  check(of(PointwiseMode_t::SOFTPLUS_FWD).set_softplus_beta(2),
        of(PointwiseMode_t::SOFTPLUS_BWD).set_softplus_beta(2),
        [](double s) { return std::log1p(std::exp(2 * s)) / 2; });
  check(of(PointwiseMode_t::ELU_FWD).set_elu_alpha(0.75f),
        of(PointwiseMode_t::ELU_BWD).set_elu_alpha(0.75f),
        [](double s) { return s < 0 ? 0.75 * std::expm1(s) : s; });
  check(of(PointwiseMode_t::GELU_FWD), of(PointwiseMode_t::GELU_BWD),
        [](double s) { return 0.5 * s * (1 + std::erf(s / std::sqrt(2))); });
  check(of(PointwiseMode_t::GELU_APPROX_TANH_FWD), of(PointwiseMode_t::GELU_APPROX_TANH_BWD),
        [](double s) {
          return 0.5 * s * (1 + std::tanh(std::sqrt(2 / M_PI) * (s + 0.044715 * s * s * s)));
        });
  check(of(PointwiseMode_t::RELU_FWD).set_relu_lower_clip(-0.5f).set_relu_lower_clip_slope(0.25f),
        of(PointwiseMode_t::RELU_BWD).set_relu_lower_clip(-0.5f).set_relu_lower_clip_slope(0.25f),
        [](double s) { return s < -0.5 ? -0.5 + 0.25 * (s + 0.5) : s; });
}

// Sequences of 4 and 9 rows on 13 and 6 keys, one behind the other in memory.
TEST_F(CudnnAttention, PackedSequences) {
  const std::vector<int32_t> lengths_q{4, SQ}, lengths_kv{SKV, 6};
  const auto packed = [&](const std::vector<float>& dense, int64_t heads, int64_t length,
                          const std::vector<int32_t>& lengths) {
    std::vector<float> rows;
    for (int64_t b = 0; b < B; ++b)
      for (int64_t i = 0; i < lengths[static_cast<size_t>(b)]; ++i)
        for (int64_t h = 0; h < heads; ++h)
          for (int64_t d = 0; d < D; ++d)
            rows.push_back(dense[static_cast<size_t>(((b * heads + h) * length + i) * D + d)]);
    return rows;
  };
  std::vector<float> rows_q = packed(truth.q, HQ, SQ, lengths_q),
                     rows_k = packed(truth.k, HK, SKV, lengths_kv),
                     rows_v = packed(truth.v, HK, SKV, lengths_kv), rows_o(rows_q.size() + 7, NAN);
  std::vector<int64_t> offsets_q{0, 4 * HQ * D, (4 + SQ) * HQ * D},
      offsets_kv{0, SKV * HK * D, (SKV + 6) * HK * D};
  std::vector<int32_t> of_q = lengths_q, of_kv = lengths_kv;
  make_inputs();
  const Tensor ragged_q = tensor("offsets_q", OTHER, {B + 1, 1, 1, 1}, fe::DataType_t::INT64),
               ragged_kv = tensor("offsets_kv", LAST, {B + 1, 1, 1, 1}, fe::DataType_t::INT64);
  q->set_stride({SQ * HQ * D, D, HQ * D, 1}).set_ragged_offset(ragged_q);
  for (const Tensor& side : {k, v})
    side->set_stride({SKV * HK * D, D, HK * D, 1}).set_ragged_offset(ragged_kv);
  const auto made = graph->sdpa(
      q, k, v,
      Options()
          .set_generate_stats(false)
          .set_attn_scale(0.3f)
          .set_padding_mask(true)
          .set_seq_len_q(tensor("lengths_q", LENGTHS_Q, {B, 1, 1, 1}, fe::DataType_t::INT32))
          .set_seq_len_kv(tensor("lengths_kv", LENGTHS_KV, {B, 1, 1, 1}, fe::DataType_t::INT32))
          .set_diagonal_alignment(fe::DiagonalAlignment_t::BOTTOM_RIGHT)
          .set_diagonal_band_right_bound(0));
  EXPECT_EQ(made[1], nullptr);
  made[0]->set_output(true).set_uid(O).set_dim({B, HQ, SQ, D});
  made[0]->set_stride({SQ * HQ * D, D, HQ * D, 1}).set_ragged_offset(ragged_q);
  pack = {{Q, rows_q.data()},        {K, rows_k.data()},       {V, rows_v.data()},
          {O, rows_o.data()},        {LENGTHS_Q, of_q.data()}, {LENGTHS_KV, of_kv.data()},
          {OTHER, offsets_q.data()}, {LAST, offsets_kv.data()}};
  truth.scale = 0.3;
  truth.score = [&](const Cell& c, double s) {
    const int64_t of_rows = lengths_q[static_cast<size_t>(c.b)],
                  of_keys = lengths_kv[static_cast<size_t>(c.b)];
    return c.i < of_rows && c.j < of_keys && c.j <= c.i + of_keys - of_rows ? s : -INFINITY;
  };
  truth.compute();
  run();
  const std::vector<float> wanted =
      packed(std::vector<float>(truth.o.begin(), truth.o.end()), HQ, SQ, lengths_q);
  for (size_t i = 0; i < rows_o.size(); ++i) {
    if (i < wanted.size()) {
      ASSERT_NEAR(rows_o[i], wanted[i], 2e-5) << i;
    } else {
      ASSERT_TRUE(std::isnan(rows_o[i])) << "past the last sequence";
    }
  }
}

// Pages of 4 rows, in no order; with a score modifier lengths hide keys without a padding mask too.
TEST_F(CudnnAttention, PagedCaches) {
  constexpr int64_t kRows = 4, kPages = (SKV + kRows - 1) / kRows;
  std::vector<float> pages_k(B * kPages * HK * kRows * D, NAN), pages_v = pages_k;
  std::vector<int32_t> table(B * kPages), lengths_q{SQ, SQ}, lengths_kv{SKV, 6};
  for (size_t n = 0; n < table.size(); ++n)
    table[n] = static_cast<int32_t>((n * 3 + 1) % table.size());
  for (int64_t b = 0; b < B; ++b)
    for (int64_t h = 0; h < HK; ++h)
      for (int64_t j = 0; j < lengths_kv[static_cast<size_t>(b)]; ++j)
        for (int64_t d = 0; d < D; ++d) {
          const int64_t page = table[static_cast<size_t>(b * kPages + j / kRows)];
          const auto to = static_cast<size_t>(((page * HK + h) * kRows + j % kRows) * D + d);
          const auto from = static_cast<size_t>(((b * HK + h) * SKV + j) * D + d);
          pages_k[to] = truth.k[from], pages_v[to] = truth.v[from];
        }
  truth.scale = 0.3;
  for (bool with_modifier : {false, true}) {
    graph = new_graph();
    make_inputs();
    k->set_dim({B * kPages, HK, kRows, D}).set_stride(row_major({B * kPages, HK, kRows, D}));
    v->set_dim(k->get_dim()).set_stride(k->get_stride());
    Options options =
        Options()
            .set_attn_scale(0.3f)
            .set_seq_len_q(tensor("q", LENGTHS_Q, {B, 1, 1, 1}, fe::DataType_t::INT32))
            .set_seq_len_kv(tensor("kv", LENGTHS_KV, {B, 1, 1, 1}, fe::DataType_t::INT32))
            .set_paged_attention_k_table(
                tensor("table", OTHER, {B, 1, kPages, 1}, fe::DataType_t::INT32))
            .set_paged_attention_v_table(
                tensor("table", LAST, {B, 1, kPages, 1}, fe::DataType_t::INT32))
            .set_paged_attention_max_seq_len_kv(SKV);
    if (with_modifier) {
      options.set_score_mod(fe::graph::attn::score_modifiers::causal_mask);
    } else {
      options.set_padding_mask(true);
    }
    add_forward(options);
    pack[K] = pages_k.data(), pack[V] = pages_v.data();
    pack[LENGTHS_Q] = lengths_q.data(), pack[LENGTHS_KV] = lengths_kv.data();
    pack[OTHER] = table.data(), pack[LAST] = table.data();
    truth.score = [&](const Cell& c, double s) {
      const bool seen =
          c.j < lengths_kv[static_cast<size_t>(c.b)] && (!with_modifier || c.j <= c.i);
      return seen ? s : -INFINITY;
    };
    expect_forward();
  }
}

// Graphs kept by their key, as programs keep them.
TEST_F(CudnnAttention, GraphsAreKeptByTheirKey) {
  std::map<size_t, std::shared_ptr<fe::graph::Graph>> kept;
  for (int64_t window : {3, 5, 3}) {
    graph = new_graph();
    make_inputs();
    add_forward(Options().set_diagonal_band_left_bound(window).set_attn_scale(0.3f));
    ASSERT_TRUE(graph->build_operation_graph(handle).is_good());
    const size_t key = graph->key();
    EXPECT_EQ(kept.count(key), window == 3 && kept.size() == 2 ? 1u : 0u);
    kept.emplace(key, graph);
    truth.scale = 0.3;
    truth.score = [&](const Cell& c, double s) { return c.j > c.i - window ? s : -INFINITY; };
    graph = kept.at(key);
    expect_forward();
  }
}

// Smaller sizes take the plan, larger ones one of their own and the workspace that is asked for.
TEST_F(CudnnAttention, SizesOfAnExecution) {
  make_inputs();
  graph->set_override_shape_enabled(true);
  add_forward(Options().set_attn_scale(0.3f).set_causal_mask(true));
  pack[O] = found_o.data();
  truth.scale = 0.3;
  truth.score = [](const Cell& c, double s) { return c.j <= c.i ? s : -INFINITY; };
  expect_forward();
  for (int64_t batch : {1, 3, 3}) {
    for (int64_t rows : {SQ - 2, SQ + 4}) {
      AttentionF64 other(batch, HQ, HK, rows, SKV, D);
      other.scale = 0.3, other.score = truth.score;
      other.compute();
      std::vector<float> o_there(other.q.size(), NAN), stats_there(other.stats.size(), NAN);
      Pack there{{Q, other.q.data()},
                 {K, other.k.data()},
                 {V, other.v.data()},
                 {O, o_there.data()},
                 {STATS, stats_there.data()}};
      const std::vector<int64_t> uids{Q, K, V, O, STATS};
      const std::vector<std::vector<int64_t>> shapes{{batch, HQ, rows, D},
                                                     {batch, HK, SKV, D},
                                                     {batch, HK, SKV, D},
                                                     {batch, HQ, rows, D},
                                                     {batch, HQ, rows, 1}};
      std::vector<std::vector<int64_t>> strides;
      for (const std::vector<int64_t>& shape : shapes) strides.push_back(row_major(shape));
      int64_t bytes = -1;
      fe::error_t error = graph->get_workspace_size(handle, bytes, uids, shapes, strides);
      ASSERT_TRUE(error.is_good()) << error.get_message();
      workspace.resize(static_cast<size_t>(bytes));
      error = graph->execute(handle, there, workspace.data(), uids, shapes, strides);
      ASSERT_TRUE(error.is_good()) << error.get_message();
      expect_near(o_there, other.o);
      expect_near(stats_there, other.stats);
    }
  }
  // O of the layout [B,S,H,D] in place of [B,H,S,D] breaks the op's rules.
  const fe::error_t error =
      graph->execute(handle, pack, workspace.data(), {Q, O}, {{3, HQ, SQ, D}, {3, SQ, HQ, D}},
                     {row_major({3, HQ, SQ, D}), row_major({3, SQ, HQ, D})});
  EXPECT_TRUE(error.is_bad());
  EXPECT_FALSE(error.get_message().empty());
}

TEST_F(CudnnAttention, ALargerWorkspaceHasToBeAskedFor) {
  make_inputs(true);
  truth.scale = 0.3;
  add_backward(BackwardOptions().set_attn_scale(0.3f));
  expect_backward();
  constexpr int64_t kRows = 500;
  AttentionF64 other(B, HQ, HK, kRows, SKV, D);
  other.scale = 0.3;
  other.compute();
  std::vector<float> o_there(other.o.begin(), other.o.end()),
      stats_there(other.stats.begin(), other.stats.end()), dq_there(other.q.size(), NAN);
  Pack there = pack;
  there[Q] = other.q.data(), there[K] = other.k.data(), there[V] = other.v.data();
  there[O] = o_there.data(), there[STATS] = stats_there.data(), there[DO] = other.d_o.data();
  there[DQ] = dq_there.data();
  // Without strides dQ would lie as it was planned, where more rows of a head have no room.
  const std::vector<int64_t> uids{Q, O, DO, DQ, STATS};
  std::vector<std::vector<int64_t>> shapes(4, {B, HQ, kRows, D}), strides(4, row_major(shapes[0]));
  shapes.push_back({B, HQ, kRows, 1}), strides.push_back(row_major(shapes[4]));
  const auto run_there = [&] {
    return graph->execute(handle, there, workspace.data(), uids, shapes, strides);
  };
  const fe::error_t early = run_there();
  EXPECT_EQ(early.get_code(), fe::error_code_t::INVALID_VALUE);
  EXPECT_NE(early.get_message().find("get_workspace_size has said"), std::string::npos)
      << early.get_message();
  EXPECT_TRUE(std::isnan(dq_there[0])) << "nothing is written";
  int64_t bytes = 0;
  ASSERT_TRUE(graph->get_workspace_size(handle, bytes, uids, shapes, strides).is_good());
  EXPECT_GT(bytes, static_cast<int64_t>(workspace.size()));
  workspace.resize(static_cast<size_t>(bytes));
  const fe::error_t late = run_there();
  ASSERT_TRUE(late.is_good()) << late.get_message();
  expect_near(dq_there, other.d_q, 1e-4);
}

TEST_F(CudnnAttention, ComesBackFromBytes) {
  make_inputs();
  add_forward(Options().set_name("a").set_attn_scale(0.3f).set_causal_mask(true));
  truth.scale = 0.3;
  truth.score = [](const Cell& c, double s) { return c.j <= c.i ? s : -INFINITY; };
  expect_forward();
  std::vector<uint8_t> bytes;
  ASSERT_TRUE(graph->serialize(bytes).is_good());
  fe::graph::Graph read;
  const fe::error_t error = read.deserialize(handle, bytes);
  ASSERT_TRUE(error.is_good()) << error.get_message();
  fe::graph::Tensor_attributes known;
  ASSERT_TRUE(read.query_tensor_attributes_of_uid(Q, known).is_good());
  EXPECT_EQ(known.get_dim(), (std::vector<int64_t>{B, HQ, SQ, D}));
  EXPECT_EQ(known.get_uid(), Q);
  EXPECT_TRUE(read.query_tensor_attributes_of_uid(77, known).is_bad());
  std::fill(found_o.begin(), found_o.end(), NAN);
  ASSERT_TRUE(read.execute(handle, pack, workspace.data()).is_good());
  expect_near(found_o, truth.o);
  // In ascending uid: that of Q is 0.
  void* sorted[] = {truth.q.data(), truth.k.data(), truth.v.data(), found_o.data(),
                    found_stats.data()};
  std::fill(found_o.begin(), found_o.end(), NAN);
  ASSERT_TRUE(read.execute(handle, sorted, 5, workspace.data()).is_good());
  expect_near(found_o, truth.o);
  for (const char* wrong : {"", "7", "{}\n", "\n12", "{}\n99999999999999999999"}) {
    const std::string text = wrong;
    fe::graph::Graph none;
    EXPECT_TRUE(none.deserialize(handle, std::vector<uint8_t>(text.begin(), text.end())).is_bad());
  }
}

}  // namespace
