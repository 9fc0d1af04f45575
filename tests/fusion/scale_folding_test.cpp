// Every row of the folding tables: the folded graphs mean what the unfolded ones do, forward and
// backward, in f64; and either half of the log2 contract alone is off by ln 2.
#include "fusion/scale_folding.h"

#include <gtest/gtest.h>

#include <cmath>

#include "graph/text.h"
#include "reference/evaluate.h"
#include "support/program.h"

namespace heddle::testing {
namespace {

using fusion::ScaleFolding;
using graph::kNone;
using graph::TensorId;
using reference::Values;
using Side = ScaleFolding::Side;

constexpr double kScale = 0.3;

/// rope(Q), rope(K) -> sdpa, and its backward, over the same memory: the backward is given what
/// the forward left (rotated Q and K, O and Stats).
struct Pair {
  Program program;
  TensorId q, k, v, freqs, q_rotated, k_rotated, o, stats, d_o, d_q_rotated, d_k_rotated, d_q, d_k,
      d_v, bias = kNone, d_bias = kNone, sink = kNone, d_sink = kNone;
  graph::Graph forward, backward;

  Pair(uint64_t seed, bool has_extras);
  std::vector<graph::Node> forward_nodes(const graph::AttentionAttributes& a);
  std::vector<graph::Node> backward_nodes(const graph::AttentionAttributes& a);
  /// Runs the forward graph, keeps its results in memory, then evaluates the backward.
  Values run() {
    const reference::Buffers& buffers = bound = program.buffers();
    reference::store_results(reference::evaluate(forward, buffers).value(), buffers);
    return reference::evaluate(backward, buffers).value();
  }
  reference::Buffers bound;
};

Pair::Pair(uint64_t seed, bool has_extras) {
  Random random(seed);
  const auto tensor = [&](const char* name, Dims dims, bool is_input) {
    const TensorId id = program.add(name, DataType::f64, dims);
    program.allocate(id);
    if (is_input) program.fill(id, [&] { return random.normal(); });
    return id;
  };
  const Dims query{2, 4, 7, 16}, key{2, 2, 9, 16};
  q = tensor("q", query, true), k = tensor("k", key, true), v = tensor("v", key, true);
  d_o = tensor("dO", query, true), freqs = tensor("freqs", {9, 1, 1, 12}, true);
  q_rotated = tensor("q_rotated", query, false), k_rotated = tensor("k_rotated", key, false);
  o = tensor("o", query, false), stats = tensor("stats", {2, 4, 7, 1}, false);
  d_q = tensor("dQ", query, false), d_k = tensor("dK", key, false), d_v = tensor("dV", key, false);
  d_q_rotated = tensor("dQ_rotated", query, false);
  d_k_rotated = tensor("dK_rotated", key, false);
  program.graph[d_q_rotated].is_virtual = program.graph[d_k_rotated].is_virtual = true;
  graph::AttentionAttributes a;
  a.attn_scale = kScale;
  if (has_extras) {
    a.right_bound = 0;
    a.alibi_mask = true;
    a.bias = bias = tensor("bias", {1, 4, 7, 9}, true);
    a.sink = sink = tensor("sink", {1, 4, 1, 1}, true);
    d_bias = tensor("dBias", {1, 4, 7, 9}, false), d_sink = tensor("dSink", {1, 4, 1, 1}, false);
  }
  forward = backward = program.graph;
  forward.nodes = forward_nodes(a);
  backward.nodes = backward_nodes(a);
}

std::vector<graph::Node> Pair::forward_nodes(const graph::AttentionAttributes& a) {
  graph::Rope rope_q{.x = q, .freqs = freqs, .y = q_rotated, .rope_dim = 12};
  graph::Rope rope_k{.x = k, .freqs = freqs, .y = k_rotated, .rope_dim = 12};
  graph::Sdpa sdpa{.q = q_rotated, .k = k_rotated, .v = v, .o = o, .stats = stats};
  sdpa.attention = a;
  return {{"rope_q", rope_q}, {"rope_k", rope_k}, {"sdpa", sdpa}};
}

std::vector<graph::Node> Pair::backward_nodes(const graph::AttentionAttributes& a) {
  graph::SdpaBackward op{
      .q = q_rotated, .k = k_rotated, .v = v, .o = o, .d_o = d_o, .stats = stats};
  op.d_q = d_q_rotated, op.d_k = d_k_rotated, op.d_v = d_v, op.d_bias = d_bias, op.d_sink = d_sink;
  op.attention = a;
  graph::Rope rope_q{.x = d_q_rotated, .freqs = freqs, .y = d_q, .backward = true, .rope_dim = 12};
  graph::Rope rope_k{.x = d_k_rotated, .freqs = freqs, .y = d_k, .backward = true, .rope_dim = 12};
  return {{"sdpa_backward", op}, {"rope_backward_q", rope_q}, {"rope_backward_k", rope_k}};
}

graph::Rope& rope_of(graph::Graph& graph, const std::string& name) {
  for (graph::Node& node : graph.nodes) {
    if (node.name == name) return std::get<graph::Rope>(node.op);
  }
  throw std::invalid_argument(name);
}

/// max |x - factor y| over max |y|.
double distance(const Values& x, const Values& y, TensorId id, double factor = 1) {
  if (id == kNone) return 0;
  double difference = 0, magnitude = 0;
  for (size_t n = 0; n < y.result(id).values.size(); ++n) {
    const double expected = factor * y.result(id).values[n];
    difference = std::fmax(difference, std::fabs(x.result(id).values[n] - expected));
    magnitude = std::fmax(magnitude, std::fabs(expected));
  }
  return difference / magnitude;
}

struct Row {
  const char* name;
  ScaleFolding folding;
  double q_scale, k_scale;  ///< what the table says of rope and rope_backward
};

const Row kRows[] = {
    {"q_only", {Side::q_only, false}, kScale, 1},
    {"symmetric", {Side::symmetric, false}, std::sqrt(kScale), std::sqrt(kScale)},
    {"q_only_log2", {Side::q_only, true}, kScale / std::log(2), 1},
    {"symmetric_log2", {Side::symmetric, true}, std::sqrt(kScale) / std::log(2), std::sqrt(kScale)},
};

class ScaleFoldingTable : public ::testing::TestWithParam<Row> {};

TEST_P(ScaleFoldingTable, FoldedGraphsEqualTheUnfolded) {
  const Row& row = GetParam();
  for (uint64_t seed = 0; seed < 20; ++seed) {
    Pair plain(seed, seed % 2 == 1), folded(seed, seed % 2 == 1);
    const Values expected = plain.run();
    ASSERT_TRUE(fusion::fold_scale(folded.forward, row.folding).is_ok());
    ASSERT_TRUE(fusion::fold_scale(folded.backward, row.folding).is_ok());
    for (const char* side : {"rope_q", "rope_backward_q"}) {
      graph::Graph& graph = side[5] == 'b' ? folded.backward : folded.forward;
      EXPECT_DOUBLE_EQ(rope_of(graph, side).output_scale, row.q_scale);
    }
    EXPECT_DOUBLE_EQ(rope_of(folded.forward, "rope_k").output_scale, row.k_scale);
    EXPECT_DOUBLE_EQ(rope_of(folded.backward, "rope_backward_k").output_scale, row.k_scale);
    const auto& op = std::get<graph::Sdpa>(folded.forward.nodes.back().op);
    EXPECT_EQ(op.attention.attn_scale, 1);
    EXPECT_EQ(op.attention.softmax_input_is_log2, row.folding.log2);

    const Values actual = folded.run();
    const Values forward = reference::evaluate(plain.forward, plain.bound).value();
    const Values folded_forward = reference::evaluate(folded.forward, folded.bound).value();
    for (TensorId id : {plain.o, plain.stats}) {
      EXPECT_LT(distance(folded_forward, forward, id), 1e-13) << forward.tensor(id).name;
    }
    for (TensorId id : {plain.d_q, plain.d_k, plain.d_v, plain.d_bias, plain.d_sink}) {
      EXPECT_LT(distance(actual, expected, id), 1e-12) << (id < 0 ? "" : actual.tensor(id).name);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Table, ScaleFoldingTable, ::testing::ValuesIn(kRows),
                         [](const auto& info) { return info.param.name; });

// The flag makes sdpa_backward's gradient carry ln 2; a rope_backward that keeps A instead of
// A / ln 2 shows it.
TEST(ScaleFolding, OneHalfOfTheLog2ContractAloneIsOffByLn2) {
  Pair plain(1, true), half(1, true);
  const Values expected = plain.run();
  ASSERT_TRUE(fusion::fold_scale(half.forward, {Side::q_only, true}).is_ok());
  ASSERT_TRUE(fusion::fold_scale(half.backward, {Side::q_only, true}).is_ok());
  rope_of(half.backward, "rope_backward_q").output_scale = kScale;
  const Values actual = half.run();
  EXPECT_LT(distance(actual, expected, half.d_q, std::log(2)), 1e-12);
  EXPECT_LT(distance(actual, expected, half.d_k), 1e-12);
}

TEST(ScaleFolding, RefusesInWordsAndLeavesTheGraph) {
  const auto refusal = [](graph::Graph graph, ScaleFolding folding) {
    const std::string before = graph::write_text(graph);
    const Status status = fusion::fold_scale(graph, folding);
    EXPECT_EQ(graph::write_text(graph), before);
    return status.message();
  };
  Pair pair(0, false);
  graph::Graph graph = pair.forward;
  std::get<graph::Sdpa>(graph.nodes[2].op).attention.attn_scale = -1;
  EXPECT_NE(refusal(graph, {Side::symmetric, false}).find("no square root"), std::string::npos);
  graph = pair.forward;
  graph.nodes.erase(graph.nodes.begin());
  EXPECT_NE(refusal(graph, {}).find("Q comes from no rope"), std::string::npos);
  graph = pair.forward;
  std::get<graph::Sdpa>(graph.nodes[2].op).v = pair.k_rotated;
  EXPECT_NE(refusal(graph, {Side::symmetric, false}).find("reads its rotated K too"),
            std::string::npos);
  graph = pair.forward;
  ASSERT_TRUE(fusion::fold_scale(graph, {Side::q_only, true}).is_ok());
  EXPECT_NE(refusal(graph, {Side::q_only, true}).find("log2 units already"), std::string::npos);
  graph = pair.backward;
  graph[pair.d_q_rotated].is_virtual = false;
  EXPECT_NE(refusal(graph, {}).find("dQ before rotation is an output"), std::string::npos);
}

}  // namespace
}  // namespace heddle::testing
