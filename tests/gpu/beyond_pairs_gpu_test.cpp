// f32 attention whose numbers pairs of f16 do not hold, which Hopper's kernels multiply: rows far
// below their head, and gradients of scores far from the bound that gives them their unit.
#include <cmath>

#include "gpu/attention_program.h"
#include "reference/evaluate.h"
#include "support/compare.h"

namespace heddle::testing {
namespace {

using graph::PointwiseMode;
using graph::TensorId;

AttentionShape shape_of(int64_t head_dim, bool backward = true) {
  return {.dtype = DataType::f32, .head_dim = head_dim, .backward = backward};
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
    for (int64_t head = 0; head < tensor.dims[1]; ++head) {
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
    Built forward = executed(
        attention_program(shape_of(head_dim, false), cause, [](Input input, int64_t row, double x) {
          return input == Input::v && row == 0 ? 1e-28 * x : x;
        }));
    expect_row(forward, std::get<graph::Sdpa>(forward.program.graph.nodes[0].op).o, 0);
    Built backward =
        executed(attention_program(shape_of(head_dim), {}, [](Input input, int64_t row, double x) {
          return input == Input::d_o && row == 5 ? 1e-28 * x : x;
        }));
    expect_row(backward, std::get<graph::SdpaBackward>(backward.program.graph.nodes[0].op).d_q, 5);
  }
}

/// Scores are dot products times numbers of their head, as a learned temperature has them.
void multiply_scores(Program& program, const AttentionShape& shape, graph::AttentionAttributes& a,
                     double by) {
  const TensorId factor = program.add("factor", DataType::f32, {1, shape.heads, 1, 1});
  program.allocate(factor);
  for (int64_t h = 0; h < shape.heads; ++h)
    program.set(factor, by * static_cast<double>(1 + h), 0, h);
  graph::ScoreModifier modifier;
  for (TensorId* id : {&modifier.score_in, &modifier.score_out}) {
    *id = program.add("score", DataType::f32, shape.cells());
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
      const AttentionShape shape = shape_of(head_dim);
      Built built = executed(attention_program(
          shape,
          [=](Program& program, graph::AttentionAttributes& a) {
            multiply_scores(program, shape, a, slope);
          },
          [=](Input input, int64_t, double x) {
            return input == Input::q ? x / slope : input == Input::k ? x : std::fabs(x);
          }));
      EXPECT_TRUE(matches_reference(built.program, DataType::f32, kTwiceNaive));
    }
  }
}

TEST_F(BeyondPairs, DropoutMayKeepFewWeights) {
  for (const int64_t head_dim : {64, 128}) {
    for (const double probability : {0.5, 0.99}) {
      SCOPED_TRACE(fmt::format("head_dim {}, probability {}", head_dim, probability));
      Built built = executed(attention_program(
          shape_of(head_dim),
          [=](Program& program, graph::AttentionAttributes& a) {
            a.dropout.probability = probability;
            for (TensorId* id : {&a.dropout.seed, &a.dropout.offset}) {
              *id = program.add("seed", DataType::i64, {1, 1, 1, 1});
              program.allocate(*id);
              program.set_integer(*id, 7);
            }
          },
          [](Input input, int64_t, double x) { return input == Input::q ? 2 * x : std::fabs(x); }));
      EXPECT_TRUE(matches_reference(built.program, DataType::f32, kTwiceNaive));
    }
  }
}

}  // namespace
}  // namespace heddle::testing
