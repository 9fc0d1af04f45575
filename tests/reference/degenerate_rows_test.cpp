// Rows without a visible key: the exact values of the contract's table, never NaN.
#include <gtest/gtest.h>

#include <cmath>

#include "reference/evaluate.h"
#include "support/program.h"

namespace heddle::testing {
namespace {

using graph::kNone;
using graph::TensorId;

/// One batch entry, one head, 4 rows, 5 keys; len_q = 3 and `kv` keys.
struct Padded {
  Program program;
  graph::Sdpa op;

  Padded(int64_t kv, bool has_sink) {
    Random random(7);
    const auto tensor = [&](const char* name, DataType dtype, Dims dims, bool is_input) {
      const TensorId id = program.add(name, dtype, dims);
      program.allocate(id);
      if (is_input) program.fill(id, [&] { return random.normal(); });
      return id;
    };
    op.q = tensor("q", DataType::f32, {1, 1, 4, 8}, true);
    // What lies past the lengths stays NaN.
    op.k = tensor("k", DataType::f32, {1, 1, 5, 8}, false);
    op.v = tensor("v", DataType::f32, {1, 1, 5, 8}, false);
    for (TensorId id : {op.k, op.v}) {
      program.fill(
          id, [&] { return random.normal(); }, [&](int64_t) { return kv; });
    }
    op.o = tensor("o", DataType::f32, {1, 1, 4, 8}, false);
    for (TensorId* statistic : {&op.stats, &op.max, &op.sum_exp}) {
      *statistic = tensor("statistic", DataType::f32, {1, 1, 4, 1}, false);
    }
    graph::AttentionAttributes& a = op.attention;
    a.padding_mask = true;
    a.seq_len_q = tensor("len_q", DataType::i32, {1, 1, 1, 1}, false);
    a.seq_len_kv = tensor("len_kv", DataType::i32, {1, 1, 1, 1}, false);
    program.set_integer(a.seq_len_q, 3);
    program.set_integer(a.seq_len_kv, kv);
    if (has_sink) {
      a.sink = tensor("sink", DataType::f32, {1, 1, 1, 1}, false);
      program.set(a.sink, 0.75, 0);
    }
    program.graph.nodes.push_back({"sdpa", op});
  }

  void expect_row(int64_t row, double o, double stats, double max, double sum_exp) {
    const reference::Buffers buffers = program.buffers();
    const auto values = reference::evaluate(program.graph, buffers).value();
    for (int64_t d = 0; d < 8; ++d) EXPECT_EQ(values.read(op.o, 0, 0, row, d), o);
    EXPECT_EQ(values.read(op.stats, 0, 0, row), stats);
    EXPECT_EQ(values.read(op.max, 0, 0, row), max);
    EXPECT_EQ(values.read(op.sum_exp, 0, 0, row), sum_exp);
  }
};

TEST(DegenerateRows, NoKeysNoSink) { Padded(0, false).expect_row(1, 0, -INFINITY, -INFINITY, 0); }

TEST(DegenerateRows, NoKeysWithSink) { Padded(0, true).expect_row(1, 0, 0.75, 0.75, 1); }

TEST(DegenerateRows, RowsPastTheLength) {
  Padded(5, false).expect_row(3, 0, -INFINITY, -INFINITY, 0);
  Padded(5, true).expect_row(3, 0, -INFINITY, -INFINITY, 0);
}

TEST(DegenerateRows, MaskedByBoundsOrByABiasOfMinusInfinity) {
  Padded padded(5, false);
  auto& op = std::get<graph::Sdpa>(padded.program.graph.nodes[0].op);
  // Bottom right of 5 keys and 3 rows, keys at most row + 2 and above row + 1: row 2 keeps key 4.
  op.attention.diagonal_alignment = graph::DiagonalAlignment::bottom_right;
  op.attention.right_bound = 0;
  op.attention.left_bound = 1;
  const reference::Buffers buffers = padded.program.buffers();
  auto values = reference::evaluate(padded.program.graph, buffers).value();
  for (int64_t d = 0; d < 8; ++d) {
    EXPECT_EQ(values.read(op.o, 0, 0, 2, d), values.read(op.v, 0, 0, 4, d));
  }
  EXPECT_EQ(values.read(op.sum_exp, 0, 0, 2), 1);

  Padded biased(5, false);
  Program& program = biased.program;
  const TensorId bias = program.add("bias", DataType::f32, {1, 1, 1, 5});
  program.allocate(bias);
  program.fill(bias, [] { return -INFINITY; });
  std::get<graph::Sdpa>(program.graph.nodes[0].op).attention.bias = bias;
  biased.expect_row(1, 0, -INFINITY, -INFINITY, 0);
}

/// The gradients of `padded`, whose forward has run.
struct Gradients {
  graph::SdpaBackward op;
  graph::Graph graph;

  explicit Gradients(Padded& padded, bool apart = false) {
    Program& program = padded.program;
    const auto& forward = std::get<graph::Sdpa>(program.graph.nodes[0].op);
    op.q = forward.q, op.k = forward.k, op.v = forward.v, op.o = forward.o;
    op.attention = forward.attention;
    if (apart) {
      op.max = forward.max, op.sum_exp = forward.sum_exp;
    } else {
      op.stats = forward.stats;
    }
    op.d_o = program.add("dO", DataType::f32, {1, 1, 4, 8});
    program.allocate(op.d_o);
    program.fill(
        op.d_o, [] { return 1.0; }, [](int64_t) { return 3; });
    op.d_q = program.add("dQ", DataType::f32, {1, 1, 4, 8});
    op.d_k = program.add("dK", DataType::f32, {1, 1, 5, 8});
    op.d_v = program.add("dV", DataType::f32, {1, 1, 5, 8});
    if (forward.attention.sink != kNone)
      op.d_sink = program.add("dSink", DataType::f32, {1, 1, 1, 1});
    const reference::Buffers buffers = program.buffers();
    reference::store_results(reference::evaluate(program.graph, buffers).value(), buffers);
    graph = program.graph;
    graph.nodes = {{"sdpa_backward", op}};
  }

  /// The loss reads the rows' log-sum-exps too.
  void read_stats(TensorId d_stats, const Program& program) {
    op.d_stats = d_stats;
    graph = program.graph;
    graph.nodes = {{"sdpa_backward", op}};
  }

  void expect_none(Program& program) const {
    const reference::Buffers buffers = program.buffers();
    const auto values = reference::evaluate(graph, buffers).value();
    for (TensorId id : {op.d_q, op.d_k, op.d_v, op.d_sink}) {
      if (id == kNone) continue;
      for (size_t n = 0; n < values.result(id).values.size(); ++n) {
        EXPECT_EQ(values.result(id).values[n], 0) << graph[id].name << " " << n;
        EXPECT_TRUE(values.result(id).written[n]);
      }
    }
  }
};

TEST(DegenerateRows, HaveNoGradient) {
  for (const bool apart : {false, true}) {
    for (const bool has_sink : {false, true}) {
      Padded padded(0, has_sink);
      Gradients(padded, apart).expect_none(padded.program);
    }
  }
}

// Their log-sum-exp is -inf whatever Q and K are, or the sink's logit.
TEST(DegenerateRows, HaveNoGradientOfTheirLogSumExpButASinks) {
  for (const bool apart : {false, true}) {
    for (const bool has_sink : {false, true}) {
      Padded padded(0, has_sink);
      Gradients gradients(padded, apart);
      Program& program = padded.program;
      const TensorId d_stats = program.add("dStats", DataType::f32, {1, 1, 4, 1});
      program.allocate(d_stats);
      program.fill(d_stats, [=] { return has_sink ? 2 : INFINITY; });
      gradients.read_stats(d_stats, program);
      if (!has_sink) {
        gradients.expect_none(program);
        continue;
      }
      const reference::Buffers buffers = program.buffers();
      const auto values = reference::evaluate(gradients.graph, buffers).value();
      EXPECT_EQ(values.read(gradients.op.d_sink, 0, 0), 3 * 2);
      for (int64_t d = 0; d < 8; ++d) EXPECT_EQ(values.read(gradients.op.d_q, 0, 0, 1, d), 0);
    }
  }
}

// O is the mean that softmax makes of equal scores. An f32 log-sum-exp holds no log(5), so that a
// backward from Stats has no gradients to give; from the maximum and the sum it has all of them.
TEST(DegenerateRows, HiddenByAFiniteNumber) {
  for (double hidden : {-1e9, -1e30, -3e38}) {
    for (const bool apart : {false, true}) {
      Padded padded(5, false);
      Program& program = padded.program;
      auto& op = std::get<graph::Sdpa>(program.graph.nodes[0].op);
      op.attention.bias = program.add("bias", DataType::f32, {1, 1, 1, 5});
      program.allocate(op.attention.bias);
      program.fill(op.attention.bias, [=] { return hidden; });
      op.attention.attn_scale = 0;
      const Gradients gradients(padded, apart);
      const reference::Buffers buffers = program.buffers();
      const auto values = reference::evaluate(program.graph, buffers).value();
      for (int64_t d = 0; d < 8; ++d) {
        double mean = 0;
        for (int64_t j = 0; j < 5; ++j) mean += values.read(op.v, 0, 0, j, d) / 5;
        EXPECT_NEAR(values.read(op.o, 0, 0, 1, d), mean, 1e-7);
      }
      if (!apart) {
        gradients.expect_none(program);
        continue;
      }
      // Of dO = 1 in three rows that weigh each of five keys alike.
      const auto backward = reference::evaluate(gradients.graph, buffers).value();
      for (int64_t j = 0; j < 5; ++j)
        for (int64_t d = 0; d < 8; ++d)
          EXPECT_NEAR(backward.read(gradients.op.d_v, 0, 0, j, d), 3.0 / 5, 1e-7);
    }
  }
}

}  // namespace
}  // namespace heddle::testing
