// Gradients where queries, keys, values and output gradients each have something in common: what a
// bias of their projection adds. The gradients of a row's scores add up to nothing; what rounding
// leaves of that sum is multiplied by what all keys share, and in dQ outweighs what they differ in.
#include <gtest/gtest.h>

#include <cmath>

#include "engine/cpu/engine.h"
#include "engine_cpu/levels.h"
#include "graph/validate.h"
#include "reference/evaluate.h"
#include "support/program.h"
#include "support/run.h"

namespace heddle::testing {
namespace {

constexpr int64_t kBatch = 2, kHeads = 2, kRows = 150, kKeys = 300, kColumns = 24;

struct Case {
  const char* name;
  DataType dtype;
  double o, d_q, d_k;  ///< relative errors allowed
  bool causal = false;
  double sink = -INFINITY;
  bool of_stats = false, half_hidden = false;
};

void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }

class CommonOffsets : public ::testing::TestWithParam<Case> {
 protected:
  /// Rows of 0.3 times normal numbers; of every head, they share an offset.
  graph::TensorId rows(const char* name, int64_t length, double offset) {
    const graph::TensorId id =
        program_.add(name, GetParam().dtype, {kBatch, kHeads, length, kColumns});
    program_.allocate(id);
    for (int64_t h = 0; h < kHeads; ++h)
      for (int64_t d = 0; d < kColumns; ++d) {
        const double shared = offset * random_.normal();
        for (int64_t b = 0; b < kBatch; ++b)
          for (int64_t i = 0; i < length; ++i)
            program_.set(id, shared + 0.3 * random_.normal(), b, h, i, d);
      }
    return id;
  }
  graph::TensorId made(const char* name, DataType dtype, Dims dims) {
    const graph::TensorId id = program_.add(name, dtype, dims);
    program_.allocate(id);
    return id;
  }

  /// A forward and its backward.
  void build() {
    const Case& c = GetParam();
    graph::Graph& graph = program_.graph;
    graph.io_dtype = c.dtype, graph.intermediate_dtype = graph.compute_dtype = DataType::f32;
    graph::Sdpa forward;
    forward.q = rows("q", kRows, 1), forward.k = rows("k", kKeys, 3);
    forward.v = rows("v", kKeys, 3);
    forward.attention.attn_scale = 1 / std::sqrt(double{kColumns});
    if (c.causal) forward.attention.right_bound = 0;
    if (c.sink > -INFINITY) {
      forward.attention.sink = made("sink", DataType::f32, {1, kHeads, 1, 1});
      for (int64_t h = 0; h < kHeads; ++h) program_.set(forward.attention.sink, c.sink, 0, h);
    }
    if (c.half_hidden) {
      // Keys that nobody sees may hold anything.
      forward.attention.bias = made("bias", DataType::f32, {kBatch, 1, 1, kKeys});
      for (int64_t b = 0; b < kBatch; ++b)
        for (int64_t j = 0; j < kKeys; ++j) {
          const bool is_hidden = j % 2 == 1;
          program_.set(forward.attention.bias, is_hidden ? -INFINITY : 0, b, 0, 0, j);
          for (int64_t h = 0; is_hidden && h < kHeads; ++h)
            for (int64_t d = 0; d < kColumns; ++d) program_.set(forward.k, 1e25, b, h, j, d);
        }
    }
    forward.o = o_ = made("o", c.dtype, {kBatch, kHeads, kRows, kColumns});
    forward.max = made("max", DataType::f32, {kBatch, kHeads, kRows, 1});
    forward.sum_exp = made("sum_exp", DataType::f32, {kBatch, kHeads, kRows, 1});
    graph::SdpaBackward backward;
    backward.q = forward.q, backward.k = forward.k, backward.v = forward.v, backward.o = forward.o;
    backward.max = forward.max, backward.sum_exp = forward.sum_exp;
    backward.d_o = rows("d_o", kRows, 3);
    if (c.of_stats) {
      backward.d_stats = made("d_stats", DataType::f32, {kBatch, kHeads, kRows, 1});
      program_.fill(backward.d_stats, [&] { return random_.normal(); });
    }
    backward.d_q = d_q_ = made("d_q", c.dtype, {kBatch, kHeads, kRows, kColumns});
    backward.d_k = d_k_ = made("d_k", c.dtype, {kBatch, kHeads, kKeys, kColumns});
    backward.whole_rows = true;
    backward.attention = forward.attention;
    graph.nodes = {{"forward", forward}, {"backward", backward}};
  }

  double error(graph::TensorId id, const reference::Values& exact, const reference::Values& got) {
    double distance = 0, norm = 0;
    const Dims& dims = program_.graph[id].dims;
    for (int64_t b = 0; b < kBatch; ++b)
      for (int64_t h = 0; h < kHeads; ++h)
        for (int64_t i = 0; i < dims[2]; ++i)
          for (int64_t d = 0; d < kColumns; ++d) {
            const double expected = exact.read(id, b, h, i, d);
            distance += std::pow(got.read(id, b, h, i, d) - expected, 2);
            norm += expected * expected;
          }
    return std::sqrt(distance / norm);
  }

  Random random_{7};
  Program program_;
  graph::TensorId o_ = graph::kNone, d_q_ = graph::kNone, d_k_ = graph::kNone;
};

TEST_P(CommonOffsets, LeaveGradientsExact) {
  build();
  const Status valid = graph::validate(program_.graph);
  ASSERT_TRUE(valid.is_ok()) << valid.message();
  graph::Graph exact_graph = program_.graph;
  exact_graph[o_].dtype = DataType::f64;
  const auto exact = reference::evaluate(exact_graph, program_.buffers());
  ASSERT_TRUE(exact.is_ok()) << exact.status().message();
  for (engine::cpu::Isa isa : available_levels()) {
    SCOPED_TRACE(engine::cpu::name(isa));
    const ForcedLevel level(isa);
    const Status status = run(program_, engine::cpu_engine());
    ASSERT_TRUE(status.is_ok()) << status.message();
    const reference::Buffers buffers = program_.buffers();
    const reference::Values got(program_.graph, buffers, {});
    EXPECT_LE(error(o_, *exact, got), GetParam().o);
    EXPECT_LE(error(d_q_, *exact, got), GetParam().d_q);
    EXPECT_LE(error(d_k_, *exact, got), GetParam().d_k);
  }
}

// Left as it is, the sum of a row's score gradients moves dQ by 1.6e-4 in f32, by 2.8 in bf16.
// With O summed key by key f32 rows of O are 2e-7 away.
constexpr double kNoSink = -INFINITY, kSink = 4;
constexpr DataType kSingle = DataType::f32, kHalf = DataType::bf16;
INSTANTIATE_TEST_SUITE_P(
    Programs, CommonOffsets,
    ::testing::Values(Case{"f32", kSingle, 1.2e-7, 5e-6, 1e-6},
                      Case{"bf16", kHalf, 4e-3, 2e-2, 3e-2},
                      Case{"f32_causal", kSingle, 1.2e-7, 5e-6, 1e-6, true},
                      Case{"bf16_causal", kHalf, 4e-3, 2e-2, 3e-2, true},
                      Case{"f32_sink", kSingle, 1.2e-7, 5e-6, 1e-6, false, kSink},
                      Case{"bf16_sink", kHalf, 4e-3, 2e-2, 3e-2, false, kSink},
                      Case{"f32_of_stats", kSingle, 1.2e-7, 5e-6, 1e-6, false, kNoSink, true},
                      Case{"bf16_of_stats", kHalf, 4e-3, 2e-2, 3e-2, false, kNoSink, true},
                      Case{"bf16_all", kHalf, 4e-3, 2e-2, 3e-2, true, kSink, true},
                      // All but some 1e-6 of a row's weight is the sink's.
                      Case{"f32_large_sink_of_stats", kSingle, 1e-6, 5e-6, 1e-6, false, 20, true},
                      Case{"f32_half_hidden", kSingle, 1.2e-7, 5e-6, 1e-6, false, kNoSink, false,
                           true}),
    [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace heddle::testing
