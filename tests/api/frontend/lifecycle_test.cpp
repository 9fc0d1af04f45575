// The builder's lifecycle: plans, filters, variant packs, text.
#include <gtest/gtest.h>

#include <cmath>

#include "heddle/frontend.h"

namespace fe = heddle::frontend;

namespace {

using fe::graph::Tensor;
using fe::graph::Tensor_attributes;

constexpr int64_t B = 1, H = 2, S = 8, D = 16;

fe::graph::Graph attention(const char* prefix = "", float scale = 0.25f, int64_t dim = D) {
  fe::graph::Graph graph;
  graph.set_io_data_type(fe::DataType_t::FLOAT).set_intermediate_data_type(fe::DataType_t::FLOAT);
  Tensor qkv[3];
  int64_t uid = 0;
  for (Tensor& tensor : qkv) {
    ++uid;
    tensor = graph.tensor(Tensor_attributes()
                              .set_name(prefix + std::to_string(uid))
                              .set_uid(uid)
                              .set_dim({B, H, S, dim})
                              .set_stride({H * S * dim, S * dim, dim, 1}));
  }
  auto [o, stats] = graph.sdpa(qkv[0], qkv[1], qkv[2],
                               fe::graph::SDPA_attributes()
                                   .set_name(std::string(prefix) + "a")
                                   .set_generate_stats(false)
                                   .set_attn_scale(scale));
  o->set_output(true).set_uid(4);
  return graph;
}

class Lifecycle : public ::testing::Test {
 protected:
  fe::graph::Graph graph = attention();
  const fe::Handle cpu{};
  std::vector<float> q = std::vector<float>(B * H * S * D, 0.5f), k = q, v = q,
                     o = std::vector<float>(q.size(), NAN);
  std::unordered_map<int64_t, void*> pack{
      {1, q.data()}, {2, k.data()}, {3, v.data()}, {4, o.data()}};
  std::vector<char> workspace;

  void build() {
    const fe::error_t error = graph.build(cpu, {fe::HeurMode_t::A});
    ASSERT_TRUE(error.is_good()) << error.get_message();
    workspace.resize(static_cast<size_t>(graph.get_workspace_size()));
  }
  void expect_result() {
    for (float value : o) ASSERT_NEAR(value, 0.5f, 1e-6f);  // a mean of equal values
  }
};

TEST_F(Lifecycle, StepByStep) {
  EXPECT_TRUE(graph.validate().is_good());
  EXPECT_TRUE(graph.build_operation_graph(cpu).is_good());
  EXPECT_TRUE(graph.create_execution_plans({fe::HeurMode_t::A}).is_good());
  EXPECT_EQ(graph.get_execution_plan_count(), 1) << "found, not built";
  EXPECT_EQ(graph.get_workspace_size(), 0);
  EXPECT_TRUE(graph.check_support(cpu).is_good());
  EXPECT_TRUE(graph.build_plans(cpu, fe::BuildPlanPolicy_t::ALL).is_good());
  EXPECT_EQ(graph.get_execution_plan_count(), 1);
  int64_t bytes = -1;
  EXPECT_TRUE(graph.get_workspace_size(bytes).is_good());
  EXPECT_EQ(bytes, graph.get_workspace_size());
  std::string name;
  EXPECT_TRUE(graph.get_plan_name(name).is_good());
  EXPECT_NE(name.find("cpu"), std::string::npos);
  workspace.resize(static_cast<size_t>(bytes));
  EXPECT_TRUE(graph.execute(cpu, pack, workspace.data()).is_good());
  expect_result();
}

TEST_F(Lifecycle, StepsOutOfOrderAreWorded) {
  EXPECT_EQ(graph.check_support().get_code(), fe::error_code_t::HEURISTIC_QUERY_FAILED);
  EXPECT_EQ(graph.create_execution_plans({}).get_code(), fe::error_code_t::HEURISTIC_QUERY_FAILED);
  EXPECT_NE(graph.execute(cpu, pack, nullptr).get_message().find("no plan yet"), std::string::npos);
  int64_t bytes;
  EXPECT_TRUE(graph.get_workspace_size(bytes).is_bad());
  EXPECT_EQ(graph.get_workspace_size(), 0);
}

TEST_F(Lifecycle, AnotherOpTakesAnotherPlan) {
  build();
  Tensor_attributes like;
  ASSERT_TRUE(graph.query_tensor_attributes_of_uid(1, like).is_good());
  const Tensor x = graph.tensor(like.set_uid(11).set_name("x"));
  graph.sdpa(x, x, x, fe::graph::SDPA_attributes().set_generate_stats(false))[0]
      ->set_output(true)
      .set_uid(12);
  EXPECT_EQ(graph.get_execution_plan_count(), 0);
  EXPECT_NE(graph.execute(cpu, pack, workspace.data()).get_message().find("no plan yet"),
            std::string::npos);
  build();
  EXPECT_EQ(graph.execute(cpu, pack, workspace.data()).get_message().find("Uid 11 not found"), 0u);
}

TEST_F(Lifecycle, FiltersAreObeyed) {
  build();
  fe::graph::Graph other = attention();
  other.deselect_engines({"cpu"});
  fe::error_t error = other.build(cpu, {fe::HeurMode_t::A});
  EXPECT_EQ(error.get_code(), fe::error_code_t::GRAPH_EXECUTION_PLAN_CREATION_FAILED);
  EXPECT_NE(error.get_message().find("The engine cpu supports it, but is deselected."),
            std::string::npos)
      << error.get_message();
  fe::graph::Graph frugal = attention();
  frugal.deselect_workspace_greater_than(graph.get_workspace_size() - 1);
  EXPECT_NE(frugal.build(cpu, {fe::HeurMode_t::A}).get_message().find("bytes of workspace"),
            std::string::npos);
  fe::graph::Graph enough = attention();
  enough.deselect_workspace_greater_than(graph.get_workspace_size());
  EXPECT_TRUE(enough.build(cpu, {fe::HeurMode_t::A}).is_good());
}

TEST_F(Lifecycle, RefusalsCarryTheEnginesReasons) {
  fe::graph::Graph wide = attention("", 0.25f, 8200);
  const fe::error_t error = wide.build(cpu, {fe::HeurMode_t::A});
  EXPECT_EQ(error.get_code(), fe::error_code_t::GRAPH_EXECUTION_PLAN_CREATION_FAILED);
  EXPECT_EQ(error.get_message().find("No execution plans support the graph. cpu: "), 0u)
      << error.get_message();
}

TEST_F(Lifecycle, VariantPacks) {
  build();
  pack[99] = nullptr;  // extra uids are ignored
  EXPECT_TRUE(graph.execute(cpu, pack, workspace.data()).is_good());
  expect_result();
  pack.erase(2);
  const fe::error_t missing = graph.execute(cpu, pack, workspace.data());
  EXPECT_EQ(missing.get_code(), fe::error_code_t::INVALID_VARIANT_PACK);
  EXPECT_EQ(missing.get_message().find("Uid 2 not found in variant pack."), 0u);

  void* sorted[] = {q.data(), k.data(), v.data(), o.data()};
  std::fill(o.begin(), o.end(), NAN);
  EXPECT_TRUE(graph.execute(cpu, sorted, 4, workspace.data()).is_good());
  expect_result();
  EXPECT_NE(graph.execute(cpu, sorted, 3, workspace.data())
                .get_message()
                .find("expected 4, in ascending uid"),
            std::string::npos);
  pack[2] = k.data();
  EXPECT_TRUE(graph.execute_plan_at_index(cpu, pack, workspace.data(), 0).is_good());
  EXPECT_TRUE(graph.execute_plan_at_index(cpu, pack, workspace.data(), 1).is_bad());
  EXPECT_TRUE(graph.build_plan_at_index(cpu, 0).is_good());
  EXPECT_TRUE(graph.build_plan_at_index(cpu, 1).is_bad());
}

TEST_F(Lifecycle, OverriddenShapesReachThePlan) {
  build();
  // Half the sequence: the first rows of the same buffers, strides as they were.
  const std::vector<int64_t> uids{1, 2, 3, 4}, shape{B, H, S / 2, D},
      stride{H * S * D, S * D, D, 1};
  const std::vector<std::vector<int64_t>> shapes(4, shape), strides(4, stride);
  for (int run = 0; run < 2; ++run) {
    std::fill(o.begin(), o.end(), NAN);
    const fe::error_t error = graph.execute(cpu, pack, workspace.data(), uids, shapes, strides);
    ASSERT_TRUE(error.is_good()) << error.get_message();
    for (int64_t i = 0; i < B * H * S * D; ++i) {
      const bool inside = i / D % S < S / 2;
      EXPECT_EQ(std::isnan(o[static_cast<size_t>(i)]), !inside) << i;
    }
  }
  const auto refused = [&](const std::vector<int64_t>& some,
                           const std::vector<std::vector<int64_t>>& dims) {
    return graph.execute(cpu, pack, workspace.data(), some, dims,
                         std::vector<std::vector<int64_t>>(some.size(), stride));
  };
  EXPECT_NE(refused({1}, shapes).get_message().find("expected as many of each"), std::string::npos);
  EXPECT_NE(refused({1}, {{B, H, S, D, 1}}).get_message().find("expected"), std::string::npos);
  EXPECT_NE(refused({9}, {shape})
                .get_message()
                .find("A shape is given for uid 9, expected that of a tensor of the graph."),
            std::string::npos);
  EXPECT_TRUE(refused({1}, {{B, H, S / 2, D + 1}}).is_bad());
}

TEST_F(Lifecycle, SerializesAndComesBack) {
  std::vector<uint8_t> bytes;
  ASSERT_TRUE(graph.serialize(bytes).is_good());
  fe::graph::Graph read;
  const fe::error_t error = read.deserialize(cpu, bytes);
  ASSERT_TRUE(error.is_good()) << error.get_message();
  workspace.resize(static_cast<size_t>(read.get_workspace_size()));
  EXPECT_TRUE(read.execute(cpu, pack, workspace.data()).is_good());
  expect_result();
  bytes.resize(bytes.size() / 2);
  EXPECT_EQ(read.deserialize(cpu, bytes).get_code(), fe::error_code_t::MALFORMED_INPUT);
}

TEST_F(Lifecycle, KeysKnowWhatIsComputed) {
  EXPECT_EQ(attention("x").key(), attention("y").key()) << "names do not count";
  EXPECT_NE(attention("x").key(), attention("x", 0.5f).key());
  fe::graph::Graph filtered = attention();
  filtered.deselect_engines({"cpu"});
  EXPECT_NE(filtered.key(), attention().key());
}

}  // namespace
