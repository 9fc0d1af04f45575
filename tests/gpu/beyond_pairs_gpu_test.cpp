// f32 attention whose numbers pairs of f16 do not hold, which Hopper's kernels multiply: rows far
// below their head, and gradients of scores far from the bound that gives them their unit.
#include <cmath>

#include "gpu/gpu_test.h"
#include "reference/evaluate.h"
#include "support/compare.h"

namespace heddle::testing {
namespace {

using graph::PointwiseMode;
using graph::TensorId;

constexpr int64_t kHeads = 2, kRows = 70, kKeys = 90;

/// What fills q, k, v and dO, 0 to 3: row of an element, and a normal draw.
using Value = std::function<double(int tensor, int64_t row, double normal)>;
using Change = std::function<void(Program&, graph::AttentionAttributes&)>;

/// The backward, or with `forward` the forward alone.
Program program_of(int64_t head_dim, bool forward, const Value& value, const Change& change = {}) {
  Program program;
  program.graph.io_dtype = program.graph.intermediate_dtype = program.graph.compute_dtype =
      DataType::f32;
  Random random(static_cast<uint64_t>(head_dim));
  const Dims queries{1, kHeads, kRows, head_dim}, keys{1, kHeads, kKeys, head_dim},
      row{1, kHeads, kRows, 1};
  const auto add = [&](const char* name, const Dims& dims) {
    const TensorId id = program.add(name, DataType::f32, dims);
    program.allocate(id);
    return id;
  };
  const auto input = [&](const char* name, int tensor, const Dims& dims) {
    const TensorId id = add(name, dims);
    for (int64_t h = 0; h < dims[1]; ++h)
      for (int64_t i = 0; i < dims[2]; ++i)
        for (int64_t j = 0; j < dims[3]; ++j)
          program.set(id, value(tensor, i, random.normal()), 0, h, i, j);
    return id;
  };
  graph::Sdpa op;
  op.attention.attn_scale = 1 / std::sqrt(static_cast<double>(head_dim));
  if (change) change(program, op.attention);
  op.q = input("q", 0, queries);
  op.k = input("k", 1, keys);
  op.v = input("v", 2, keys);
  op.o = add("o", queries);
  op.stats = add("stats", row);
  program.graph.nodes.push_back({"attention", op});
  if (forward) return program;

  const reference::Buffers buffers = program.buffers();
  reference::store_results(reference::evaluate(program.graph, buffers).value(), buffers);
  graph::SdpaBackward gradient;
  gradient.q = op.q, gradient.k = op.k, gradient.v = op.v, gradient.o = op.o;
  gradient.stats = op.stats;
  gradient.attention = op.attention;
  gradient.d_o = input("dO", 3, queries);
  gradient.d_q = add("dQ", queries);
  gradient.d_k = add("dK", keys);
  gradient.d_v = add("dV", keys);
  program.graph.nodes = {{"gradient", gradient}};
  return program;
}

class BeyondPairs : public OnGpu {
 protected:
  /// Half a rounding step of f32 beside twice the naive error.
  static constexpr Tolerance kTwiceNaive{.factor = 2, .floor_steps = 0.5, .cancellation_steps = 0};

  Built executed(Program program) {
    Built built = build(std::move(program));
    EXPECT_TRUE(built.executable.is_ok()) << built.executable.status().message();
    if (built.executable.is_ok()) execute(built);
    return built;
  }
  /// Element by element, each by its own size.
  static void expect_row(Built& built, TensorId id, int64_t row) {
    const auto exact = reference::evaluate(built.program.graph, built.program.buffers());
    ASSERT_TRUE(exact.is_ok());
    const graph::Tensor& tensor = built.program.graph[id];
    const auto* got = reinterpret_cast<const float*>(built.program.memory.at(tensor.uid).data());
    const auto& want = exact->result(id).values;
    const int64_t columns = tensor.dims[3];
    for (int64_t head = 0; head < kHeads; ++head) {
      for (int64_t n = 0; n < columns; ++n) {
        const auto at = static_cast<size_t>((head * tensor.dims[2] + row) * columns + n);
        ASSERT_NE(want[at], 0);
        EXPECT_NEAR(got[at] / want[at], 1, 1e-3) << tensor.name << ", column " << n;
      }
    }
  }
};

void cause(Program&, graph::AttentionAttributes& a) { a.right_bound = 0; }

// Beside what is as large as 1 their squares are 0 in f32, but they are not.
TEST_F(BeyondPairs, RowsFarBelowTheirHeadAreNotZero) {
  for (const int64_t head_dim : {64, 128}) {
    SCOPED_TRACE(head_dim);
    Built forward = executed(program_of(
        head_dim, true,
        [](int tensor, int64_t row, double x) { return tensor == 2 && row == 0 ? 1e-28 * x : x; },
        cause));
    expect_row(forward, std::get<graph::Sdpa>(forward.program.graph.nodes[0].op).o, 0);
    Built backward = executed(program_of(head_dim, false, [](int tensor, int64_t row, double x) {
      return tensor == 3 && row == 5 ? 1e-28 * x : x;
    }));
    expect_row(backward, std::get<graph::SdpaBackward>(backward.program.graph.nodes[0].op).d_q, 5);
  }
}

/// Scores are dot products times numbers of their head, as a learned temperature has them.
void multiply_scores(Program& program, graph::AttentionAttributes& a, double by) {
  const Dims cells{1, kHeads, kRows, kKeys};
  const TensorId factor = program.add("factor", DataType::f32, {1, kHeads, 1, 1});
  program.allocate(factor);
  for (int64_t h = 0; h < kHeads; ++h) program.set(factor, by * static_cast<double>(1 + h), 0, h);
  graph::ScoreModifier modifier;
  for (TensorId* id : {&modifier.score_in, &modifier.score_out}) {
    *id = program.add("score", DataType::f32, cells);
    program.graph[*id].is_virtual = true;
  }
  modifier.ops.push_back(
      {PointwiseMode::mul, {modifier.score_in, factor}, modifier.score_out, 0, ""});
  a.score_mod = modifier;
}

TEST_F(BeyondPairs, SlopesOfScoresMayBeOfAnySize) {
  for (const int64_t head_dim : {64, 128}) {
    for (const double slope : {1.0, 30.0, 1e4, 1e7, 1e-4, 1e-7}) {
      SCOPED_TRACE(fmt::format("head_dim {}, slope {}", head_dim, slope));
      Built built = executed(program_of(
          head_dim, false,
          [=](int tensor, int64_t, double x) {
            return tensor == 0 ? x / slope : tensor == 1 ? x : std::fabs(x);
          },
          [=](Program& program, graph::AttentionAttributes& a) {
            multiply_scores(program, a, slope);
          }));
      EXPECT_TRUE(matches_reference(built.program, DataType::f32, kTwiceNaive));
    }
  }
}

TEST_F(BeyondPairs, DropoutMayKeepFewWeights) {
  for (const int64_t head_dim : {64, 128}) {
    for (const double probability : {0.5, 0.99}) {
      SCOPED_TRACE(fmt::format("head_dim {}, probability {}", head_dim, probability));
      Built built = executed(program_of(
          head_dim, false,
          [](int tensor, int64_t, double x) { return tensor == 0 ? 2 * x : std::fabs(x); },
          [=](Program& program, graph::AttentionAttributes& a) {
            a.dropout.probability = probability;
            for (TensorId* id : {&a.dropout.seed, &a.dropout.offset}) {
              *id = program.add("seed", DataType::i64, {1, 1, 1, 1});
              program.allocate(*id);
              program.set_integer(*id, 7);
            }
          }));
      EXPECT_TRUE(matches_reference(built.program, DataType::f32, kTwiceNaive));
    }
  }
}

}  // namespace
}  // namespace heddle::testing
