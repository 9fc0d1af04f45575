// RoPE, RMSNorm and LayerNorm: their backward definitions against their forward ones.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "reference/evaluate.h"
#include "support/streaming_programs.h"

namespace heddle::testing {
namespace {

using graph::kNone;
using graph::TensorId;

/// sum over all elements of a result and an input of the same dims.
double inner(const reference::Values& values, TensorId result, TensorId input) {
  double sum = 0;
  for (size_t n = 0; n < values.result(result).values.size(); ++n) {
    sum += values.result(result).values[n] * values.read_linear(input, static_cast<int64_t>(n));
  }
  return sum;
}

// A rotation's backward is its transpose, scale and all: <rope(x), z> = <x, rope_backward(z)>.
TEST(Rope, BackwardIsTheTranspose) {
  for (uint64_t seed = 0; seed < 300; ++seed) {
    Random random(seed);
    Program program = random_rope(random);
    graph::Graph& graph = program.graph;
    auto forward = std::get<graph::Rope>(graph.nodes[0].op);
    forward.backward = false;
    graph::Rope backward = forward;
    backward.backward = true;
    backward.x = program.add("z", *graph[forward.x].dtype, graph[forward.x].dims);
    program.allocate(backward.x);
    program.fill(backward.x, [&] { return random.normal(); });
    backward.y = program.add("dx", DataType::f64, graph[forward.x].dims);
    graph.nodes = {{"rope", forward}, {"rope_backward", backward}};
    const reference::Buffers buffers = program.buffers();
    const auto values = reference::evaluate(graph, buffers).value();
    const double left = inner(values, forward.y, backward.x);
    const double right = inner(values, backward.y, forward.x);
    ASSERT_NEAR(left, right, 1e-9 * std::fmax(1, std::fabs(left))) << seed;
  }
}

TEST(Rope, TurnsAPairByItsAngle) {
  Program program;
  graph::Rope op;
  op.x = program.add("x", DataType::f64, {1, 1, 1, 6});
  op.freqs = program.add("freqs", DataType::f32, {1, 1, 1, 4});
  op.y = program.add("y", DataType::f64, {1, 1, 1, 6});
  op.rope_dim = 4;
  op.output_scale = 2;
  for (TensorId id : {op.x, op.freqs}) program.allocate(id);
  for (int64_t d = 0; d < 6; ++d) program.set(op.x, static_cast<double>(d + 1), 0, 0, 0, d);
  program.set(op.freqs, 0.5, 0, 0, 0, 0);
  program.set(op.freqs, 0.25, 0, 0, 0, 1);
  const reference::Buffers buffers = program.buffers();
  const auto row = [&](graph::RopePairing pairing) {
    op.pairing = pairing;
    program.graph.nodes = {{"rope", op}};
    return reference::evaluate(program.graph, buffers).value().result(op.y).values;
  };
  const double c0 = std::cos(0.5), s0 = std::sin(0.5), c1 = std::cos(0.25), s1 = std::sin(0.25);
  const std::vector<double> halves{2,
                                   4,
                                   2 * (3 * c0 - 5 * s0),
                                   2 * (4 * c1 - 6 * s1),
                                   2 * (5 * c0 + 3 * s0),
                                   2 * (6 * c1 + 4 * s1)};
  const std::vector<double> interleaved{2,
                                        4,
                                        2 * (3 * c0 - 4 * s0),
                                        2 * (4 * c0 + 3 * s0),
                                        2 * (5 * c1 - 6 * s1),
                                        2 * (6 * c1 + 5 * s1)};
  const auto actual_halves = row(graph::RopePairing::halves);
  const auto actual_interleaved = row(graph::RopePairing::interleaved);
  for (size_t d = 0; d < 6; ++d) {
    EXPECT_NEAR(actual_halves[d], halves[d], 1e-14);
    EXPECT_NEAR(actual_interleaved[d], interleaved[d], 1e-14);
  }
  op.leading = true;
  const std::vector<double> leading{2 * (1 * c0 - 3 * s0),
                                    2 * (2 * c1 - 4 * s1),
                                    2 * (3 * c0 + 1 * s0),
                                    2 * (4 * c1 + 2 * s1),
                                    10,
                                    12};
  const auto actual_leading = row(graph::RopePairing::halves);
  for (size_t d = 0; d < 6; ++d) EXPECT_NEAR(actual_leading[d], leading[d], 1e-14);
}

// Numbers of 64 bits to which no row can be added, and which f64 rounds to one out of their range.
TEST(Rope, PositionsOutsideOfTheTablesTakeTheNearestRow) {
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  for (const int64_t rows : {int64_t{1}, int64_t{3}}) {
    for (const auto& [position, nearest] : {std::pair{kMost, 4.0},
                                            {kMost - 1, 4.0},
                                            {int64_t{5}, 4.0},
                                            {int64_t{-9}, 0.0},
                                            {-kMost - 1, 0.0}}) {
      Program program;
      graph::Rope op;
      op.x = program.add("x", DataType::f64, {1, 1, 3, 2});
      op.y = program.add("y", DataType::f64, {1, 1, 3, 2});
      op.freqs = program.add("freqs", DataType::f32, {5, 1, 1, 2});
      op.positions = program.add("positions", DataType::i64, {1, 1, rows, 1});
      op.rope_dim = 2;
      for (TensorId id : {op.x, op.freqs, op.positions}) program.allocate(id);
      program.fill(op.x, [] { return 1; });
      for (int64_t row = 0; row < 5; ++row)
        program.set(op.freqs, static_cast<double>(row) / 4, row, 0, 0, 0);
      for (int64_t row = 0; row < rows; ++row) program.set_integer(op.positions, position, row);
      program.graph.nodes = {{"rope", op}};
      const reference::Buffers buffers = program.buffers();
      const auto y = reference::evaluate(program.graph, buffers).value().result(op.y).values;
      for (size_t row = 0; row < 3; ++row) {
        EXPECT_NEAR(y[2 * row], std::cos(nearest / 4) - std::sin(nearest / 4), 1e-14)
            << position << " in row " << row << ", " << rows << " positions";
      }
    }
  }
}

/// Of RmsNorm, or of LayerNorm, which alone has means: a loss moves as the backward says.
template <class Norm, class NormBackward>
void expect_central_differences() {
  for (uint64_t seed = 0; seed < 60; ++seed) {
    Random random(seed);
    Program program;
    const Dims dims{3, 4, 6}, normalised{1, random.chance(0.5) ? 4 : 1, 6};
    Dims statistic = dims;
    for (int d = 0; d < 3; ++d) {
      if (normalised[d] != 1) statistic[d] = 1;
    }
    const auto tensor = [&](const char* name, const Dims& of, bool is_input) {
      const TensorId id = program.add(name, DataType::f64, of);
      program.allocate(id);
      if (is_input) program.fill(id, [&] { return random.normal(); });
      return id;
    };
    Norm forward;
    forward.x = tensor("x", dims, true), forward.scale = tensor("scale", normalised, true);
    forward.bias = tensor("bias", normalised, true), forward.y = tensor("y", dims, false);
    if constexpr (requires { forward.mean; }) forward.mean = tensor("mean", statistic, false);
    forward.inv_variance = tensor("inv_variance", statistic, false);
    forward.epsilon = program.add("epsilon", DataType::f64, {1});
    program.graph[forward.epsilon].constant = 0.1;
    NormBackward backward;
    backward.x = forward.x, backward.scale = forward.scale;
    if constexpr (requires { backward.mean; }) backward.mean = forward.mean;
    backward.inv_variance = forward.inv_variance, backward.dy = tensor("dy", dims, true);
    backward.dx = tensor("dx", dims, false),
    backward.d_scale = tensor("d_scale", normalised, false);
    backward.d_bias = tensor("d_bias", normalised, false);
    program.graph.nodes = {{"norm", forward}, {"norm_backward", backward}};
    const reference::Buffers buffers = program.buffers();
    const auto loss = [&] {
      return inner(reference::evaluate(program.graph, buffers).value(), forward.y, backward.dy);
    };
    const auto values = reference::evaluate(program.graph, buffers).value();
    for (const auto& [x, d_x] : {std::pair{forward.x, backward.dx},
                                 {forward.scale, backward.d_scale},
                                 {forward.bias, backward.d_bias}}) {
      const auto count = static_cast<int64_t>(values.result(d_x).values.size());
      const int64_t n = random.integer(0, count - 1);
      double& element = static_cast<double*>(buffers.at(program.graph[x].uid))[n];
      const double centre = element;
      constexpr double kStep = 1e-5;
      element = centre + kStep;
      const double above = loss();
      element = centre - kStep;
      const double below = loss();
      element = centre;
      ASSERT_NEAR(values.result(d_x).values[static_cast<size_t>(n)], (above - below) / (2 * kStep),
                  1e-7)
          << program.graph[x].name << ", seed " << seed;
    }
  }
}

TEST(RmsNorm, BackwardMatchesCentralDifferences) {
  expect_central_differences<graph::RmsNorm, graph::RmsNormBackward>();
}

TEST(LayerNorm, BackwardMatchesCentralDifferences) {
  expect_central_differences<graph::LayerNorm, graph::LayerNormBackward>();
}

// By hand: of 1, 2, 6 the mean is 3 and the variance 14/3.
TEST(LayerNorm, OfThreeNumbers) {
  Program program;
  graph::LayerNorm op;
  op.x = program.add("x", DataType::f64, {1, 3});
  op.scale = program.add("scale", DataType::f64, {1, 3});
  op.bias = program.add("bias", DataType::f64, {1, 3});
  op.epsilon = program.add("epsilon", DataType::f64, {1});
  program.graph[op.epsilon].constant = 1.0 / 3;
  op.y = program.add("y", DataType::f64, {1, 3});
  op.mean = program.add("mean", DataType::f64, {1, 1});
  op.inv_variance = program.add("inv_variance", DataType::f64, {1, 1});
  for (TensorId id : {op.x, op.scale, op.bias}) program.allocate(id);
  const double x[] = {1, 2, 6}, scale[] = {1, 2, 3}, bias[] = {10, 20, 30};
  for (int64_t i = 0; i < 3; ++i) {
    program.set(op.x, x[i], 0, i), program.set(op.scale, scale[i], 0, i);
    program.set(op.bias, bias[i], 0, i);
  }
  program.graph.nodes = {{"norm", op}};
  const reference::Buffers buffers = program.buffers();
  const auto values = reference::evaluate(program.graph, buffers).value();
  const double inverse = 1 / std::sqrt(5.0), expected[] = {-2, -1, 3};
  EXPECT_DOUBLE_EQ(values.result(op.mean).values[0], 3);
  EXPECT_DOUBLE_EQ(values.result(op.inv_variance).values[0], inverse);
  for (size_t i = 0; i < 3; ++i)
    EXPECT_DOUBLE_EQ(values.result(op.y).values[i], expected[i] * inverse * scale[i] + bias[i]);
}

}  // namespace
}  // namespace heddle::testing
