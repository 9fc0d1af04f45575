// The backward definitions against central differences of the forward definitions, in f64.
#include <gtest/gtest.h>

#include <cmath>

#include "reference/evaluate.h"
#include "support/attention_programs.h"

namespace heddle::testing {
namespace {

using graph::kNone;
using graph::TensorId;

/// L = sum over the written elements of weight * o, and of the rows' log-sum-exps if they have
/// weights too. Rows that see no key add nothing.
double loss(const reference::Values& values, const graph::SdpaBackward& op) {
  const reference::Array& result = values.result(op.o);
  double sum = 0;
  for (size_t n = 0; n < result.values.size(); ++n) {
    if (!result.written[n]) continue;
    const double w = values.read_linear(op.d_o, static_cast<int64_t>(n));
    if (result.values[n] != 0) sum += w * result.values[n];
  }
  if (op.d_stats == kNone) return sum;
  const bool pair = op.stats == kNone;
  const reference::Array& largest = values.result(pair ? op.max : op.stats);
  for (size_t n = 0; n < largest.values.size(); ++n) {
    if (!largest.written[n] || !std::isfinite(largest.values[n])) continue;
    const double rest = pair ? std::log(values.result(op.sum_exp).values[n]) : 0;
    sum += values.read_linear(op.d_stats, static_cast<int64_t>(n)) * (largest.values[n] + rest);
  }
  return sum;
}

/// The forward program whose backward `program` holds: same tensors, rope nodes before the sdpa.
graph::Graph forward_of(const graph::Graph& backward) {
  graph::Graph graph = backward;
  graph.nodes.clear();
  for (const graph::Node& node : backward.nodes) {
    if (const auto* rope = std::get_if<graph::Rope>(&node.op); rope && !rope->backward) {
      graph.nodes.push_back(node);
    } else if (const auto* op = std::get_if<graph::SdpaBackward>(&node.op)) {
      graph::Sdpa sdpa;
      sdpa.q = op->q;
      sdpa.k = op->k;
      sdpa.v = op->v;
      sdpa.o = op->o;
      sdpa.stats = op->stats, sdpa.max = op->max, sdpa.sum_exp = op->sum_exp;
      sdpa.attention = op->attention;
      graph.nodes.push_back({"attention", sdpa});
    }
  }
  return graph;
}

/// Compares `d_x` at random elements with the central difference of the loss along x.
void expect_gradient(Random& random, Program& program, TensorId x, TensorId d_x) {
  if (d_x == kNone) return;
  const graph::Graph forward = forward_of(program.graph);
  const auto& op = [&]() -> const graph::SdpaBackward& {
    for (const graph::Node& node : program.graph.nodes) {
      if (const auto* found = std::get_if<graph::SdpaBackward>(&node.op)) return *found;
    }
    throw std::logic_error("no sdpa_backward");
  }();
  const reference::Buffers buffers = program.buffers();
  const reference::Values backward = reference::evaluate(program.graph, buffers).value();
  const reference::Array& gradient = backward.result(d_x);
  for (int trial = 0; trial < 6; ++trial) {
    const int64_t n = random.integer(0, static_cast<int64_t>(gradient.values.size()) - 1);
    if (!gradient.written[static_cast<size_t>(n)]) continue;  // past the end of a sequence
    const graph::Tensor& tensor = program.graph[x];
    const int64_t at = backward.offset_of(x, n);
    const double centre = load(*tensor.dtype, buffers.at(tensor.uid), at);
    if (!std::isfinite(centre)) continue;  // padding, or a -inf bias
    constexpr double kStep = 1e-5;
    double value[2];
    for (int side = 0; side < 2; ++side) {
      store(*tensor.dtype, buffers.at(tensor.uid), at, centre + (side == 0 ? -kStep : kStep));
      const reference::Values values = reference::evaluate(forward, buffers).value();
      value[side] = loss(values, op);
    }
    store(*tensor.dtype, buffers.at(tensor.uid), at, centre);
    const double expected = (value[1] - value[0]) / (2 * kStep);
    ASSERT_NEAR(gradient.values[static_cast<size_t>(n)], expected,
                1e-5 * std::fmax(1, std::fabs(expected)))
        << tensor.name << " element " << n << ", seed " << program.seed;
  }
}

TEST(FiniteDifferences, SdpaBackward) {
  for (uint64_t seed = 1000; seed < 1150; ++seed) {
    Random random(seed);
    AttentionOptions options;
    options.dtypes = {DataType::f64};
    options.max_length = 12;
    options.max_head_dim = 16;
    options.rope = 0.4;
    options.statistics_dtype = DataType::f64;
    options.max_and_sum = options.stats_gradient = 0.5;
    Program program = random_sdpa_backward(random, options);
    graph::SdpaBackward* op = nullptr;
    TensorId q = kNone, k = kNone, d_q = kNone, d_k = kNone;
    for (graph::Node& node : program.graph.nodes) {
      if (auto* found = std::get_if<graph::SdpaBackward>(&node.op)) op = found;
    }
    op->score_mod_bprop.reset();  // made up, no derivative of the score
    q = op->q, k = op->k, d_q = op->d_q, d_k = op->d_k;
    bool q_rotated_here = false, k_rotated_here = false;
    for (const graph::Node& node : program.graph.nodes) {
      const auto* rope = std::get_if<graph::Rope>(&node.op);
      if (!rope) continue;
      if (rope->y == op->q) q = rope->x, q_rotated_here = true;
      if (rope->y == op->k) k = rope->x, k_rotated_here = true;
      if (rope->backward && q_rotated_here && rope->x == op->d_q) d_q = rope->y;
      if (rope->backward && k_rotated_here && rope->x == op->d_k) d_k = rope->y;
    }
    ASSERT_NO_FATAL_FAILURE(expect_gradient(random, program, q, d_q));
    ASSERT_NO_FATAL_FAILURE(expect_gradient(random, program, k, d_k));
    ASSERT_NO_FATAL_FAILURE(expect_gradient(random, program, op->v, op->d_v));
    // One of dims of its own is the gradient of no number that is there.
    if (op->d_bias != graph::kNone &&
        program.graph[op->d_bias].dims == program.graph[op->attention.bias].dims)
      ASSERT_NO_FATAL_FAILURE(expect_gradient(random, program, op->attention.bias, op->d_bias));
    ASSERT_NO_FATAL_FAILURE(expect_gradient(random, program, op->attention.sink, op->d_sink));
  }
}

}  // namespace
}  // namespace heddle::testing
