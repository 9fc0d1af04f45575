// Training steps whose scores are so large that a rounding of one is more than a weight. One key of
// a row then has all of it, and a backward that makes its scores anew finds that key only if they
// are rounded as the forward's were.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "engine/cpu/engine.h"
#include "engine_cpu/levels.h"
#include "graph/validate.h"
#include "reference/evaluate.h"
#include "support/environment.h"
#include "support/program.h"
#include "support/run.h"

namespace heddle::testing {
namespace {

constexpr int64_t kBatch = 2, kHeads = 2, kKeyHeads = 1, kColumns = 24;

struct Step {
  Program program;
  graph::TensorId o, d_q, d_k, d_v;
};

struct Case {
  DataType dtype = DataType::f32;
  int64_t rows = 1, keys = 50;
  double size = 1;    ///< of queries and keys
  bool pair = false;  ///< the maximum and the sum in place of the log-sum-exp
};

Step training_step(const Case& c) {
  Step step;
  Program& program = step.program;
  Random random(11);
  const DataType statistics = c.dtype == DataType::f64 ? DataType::f64 : DataType::f32;
  program.graph.io_dtype = c.dtype;
  program.graph.intermediate_dtype = program.graph.compute_dtype = statistics;
  const auto made = [&](const char* name, DataType dtype, Dims dims) {
    const graph::TensorId id = program.add(name, dtype, std::move(dims));
    program.allocate(id);
    return id;
  };
  const auto drawn = [&](const char* name, int64_t heads, int64_t length, double size) {
    const graph::TensorId id = made(name, c.dtype, {kBatch, heads, length, kColumns});
    program.fill(id, [&] { return size * random.normal(); });
    return id;
  };
  graph::Sdpa forward;
  forward.q = drawn("q", kHeads, c.rows, c.size);
  forward.k = drawn("k", kKeyHeads, c.keys, c.size), forward.v = drawn("v", kKeyHeads, c.keys, 1);
  forward.attention.attn_scale = 0.7;
  forward.o = step.o = made("o", c.dtype, {kBatch, kHeads, c.rows, kColumns});
  graph::SdpaBackward backward;
  const Dims of_rows{kBatch, kHeads, c.rows, 1};
  if (c.pair) {
    forward.max = backward.max = made("max", statistics, of_rows);
    forward.sum_exp = backward.sum_exp = made("sum_exp", statistics, of_rows);
  } else {
    forward.stats = backward.stats = made("stats", statistics, of_rows);
  }
  backward.q = forward.q, backward.k = forward.k, backward.v = forward.v, backward.o = forward.o;
  backward.d_o = drawn("d_o", kHeads, c.rows, 1);
  backward.d_q = step.d_q = made("d_q", c.dtype, {kBatch, kHeads, c.rows, kColumns});
  backward.d_k = step.d_k = made("d_k", c.dtype, {kBatch, kKeyHeads, c.keys, kColumns});
  backward.d_v = step.d_v = made("d_v", c.dtype, {kBatch, kKeyHeads, c.keys, kColumns});
  backward.attention = forward.attention;
  program.graph.nodes = {{"forward", forward}, {"backward", backward}};
  return step;
}

/// The largest distance from the definition, of its largest magnitude or of `least` if that is
/// more.
double distance(const Step& step, graph::TensorId id, const reference::Values& exact,
                const reference::Values& got, double least = 0) {
  double apart = 0, most = least;
  const Dims& dims = step.program.graph[id].dims;
  for (int64_t b = 0; b < dims[0]; ++b)
    for (int64_t h = 0; h < dims[1]; ++h)
      for (int64_t i = 0; i < dims[2]; ++i)
        for (int64_t d = 0; d < dims[3]; ++d) {
          const double expected = exact.read(id, b, h, i, d);
          const double off = std::abs(got.read(id, b, h, i, d) - expected);
          apart = std::max(apart, std::isnan(off) ? INFINITY : off);
          most = std::max(most, std::abs(expected));
        }
  return apart / most;
}

void expect_exact(const Case& c) {
  Step step = training_step(c);
  const Status valid = graph::validate(step.program.graph);
  ASSERT_TRUE(valid.is_ok()) << valid.message();
  const auto exact = reference::evaluate(step.program.graph, step.program.buffers());
  ASSERT_TRUE(exact.is_ok()) << exact.status().message();
  const double rounding = c.dtype == DataType::f64 ? 0x1p-52 : 0x1p-23;
  for (engine::cpu::Isa isa : available_levels()) {
    SCOPED_TRACE(::testing::Message()
                 << engine::cpu::name(isa) << ", " << name(c.dtype) << ", " << c.rows << " rows, "
                 << c.keys << " keys, size " << c.size << (c.pair ? ", the pair" : ""));
    const ForcedLevel level(isa);
    Step done = step;
    const Status status = run(done.program, engine::cpu_engine());
    ASSERT_TRUE(status.is_ok()) << status.message();
    const reference::Buffers buffers = done.program.buffers();
    const reference::Values got(done.program.graph, buffers, {});
    EXPECT_LE(distance(done, done.o, *exact, got), 16 * rounding);
    EXPECT_LE(distance(done, done.d_v, *exact, got), 16 * rounding);
    // What reaches a score is 0 of one key: what rounding leaves of it, times the others.
    EXPECT_LE(distance(done, done.d_q, *exact, got, c.size), 64 * rounding);
    EXPECT_LE(distance(done, done.d_k, *exact, got, c.size), 64 * rounding);
  }
}

TEST(HugeScores, GiveTheirKeyAllOfTheGradient) {
  for (DataType dtype : {DataType::f32, DataType::f64})
    for (int64_t rows : {1, 3, 4, 9, 30})
      for (double size : {1e4, 1e15})
        for (bool pair : {false, true}) {
          expect_exact({dtype, rows, 50, size, pair});
          if (rows < 4) expect_exact({dtype, rows, 1100, size, pair});  // keys in parts
        }
}

TEST(HugeScores, GiveItWhereNoKeysArePacked) {
  const Environment no_flash("HEDDLE_DISABLE_FLASH_ATTENTION", "1");
  for (DataType dtype : {DataType::f32, DataType::f64})
    for (int64_t rows : {1, 30, 130}) expect_exact({dtype, rows, 300, 1e4});
}

// Of a huge score no weight is more than 1, whatever the statistics of another's forward were
// rounded to.
TEST(HugeScores, AreNoHigherThanTheLogSumExp) {
  for (DataType dtype : {DataType::f32, DataType::f64})
    for (double size : {1e9, 1e15})
      for (bool pair : {false, true}) {
        Step step = training_step({dtype, 1, 1, size, pair});
        Program& program = step.program;
        ASSERT_TRUE(graph::validate(program.graph).is_ok());
        ASSERT_TRUE(run(program, engine::cpu_engine()).is_ok());
        const auto backward = std::get<graph::SdpaBackward>(program.graph.nodes[1].op);
        const graph::TensorId shift = pair ? backward.max : backward.stats;
        for (int64_t b = 0; b < kBatch; ++b)
          for (int64_t h = 0; h < kHeads; ++h) {
            const reference::Buffers buffers = program.buffers();
            const double score =
                reference::Values(program.graph, buffers, {}).read(shift, b, h, 0, 0);
            // Of another instruction set the score is some roundings off.
            const double roundings = dtype == DataType::f64 ? 0x1p-49 : 0x1p-20;
            program.set(shift, score - std::abs(score) * roundings, b, h, 0, 0);
          }
        program.graph.nodes.erase(program.graph.nodes.begin());
        for (engine::cpu::Isa isa : available_levels()) {
          SCOPED_TRACE(::testing::Message() << engine::cpu::name(isa) << ", " << name(dtype)
                                            << ", size " << size << (pair ? ", the pair" : ""));
          const ForcedLevel level(isa);
          Program done = program;
          const Status status = run(done, engine::cpu_engine());
          ASSERT_TRUE(status.is_ok()) << status.message();
          const reference::Buffers buffers = done.buffers();
          const reference::Values got(done.graph, buffers, {});
          for (int64_t b = 0; b < kBatch; ++b)
            for (int64_t d = 0; d < kColumns; ++d) {
              const double sum =
                  got.read(backward.d_o, b, 0, 0, d) + got.read(backward.d_o, b, 1, 0, d);
              EXPECT_NEAR(got.read(backward.d_v, b, 0, 0, d), sum, 1e-6);
            }
        }
      }
}

}  // namespace
}  // namespace heddle::testing
