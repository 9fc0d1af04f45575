// A sink that is NaN: as where it stands among a row's scores, O and the statistics are NaN, also
// of a row that sees no key.
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "engine/cpu/engine.h"
#include "engine_cpu/levels.h"
#include "graph/validate.h"
#include "reference/evaluate.h"
#include "support/program.h"
#include "support/run.h"

namespace heddle::testing {
namespace {

constexpr int64_t kBatch = 2, kHeads = 2, kColumns = 8;

struct Forward {
  Program program;
  std::vector<graph::TensorId> results;
};

/// The sink of the first head is NaN. Every third row sees no key, and the second entry has none.
Forward forward(DataType dtype, int64_t rows, int64_t keys, bool pair) {
  Forward made;
  Program& program = made.program;
  Random random(5);
  graph::Graph& graph = program.graph;
  graph.io_dtype = graph.intermediate_dtype = graph.compute_dtype = dtype;
  const auto add = [&](const char* name, Dims dims) {
    const graph::TensorId id = program.add(name, dtype, std::move(dims));
    program.allocate(id);
    program.fill(id, [&] { return random.normal(); });
    return id;
  };
  const auto result = [&](const char* name, Dims dims) {
    made.results.push_back(program.add(name, dtype, std::move(dims)));
    program.allocate(made.results.back());
    return made.results.back();
  };
  const auto lengths = [&](const char* name, std::initializer_list<int64_t> values) {
    const graph::TensorId id = program.add(name, DataType::i32, {kBatch, 1, 1, 1});
    program.allocate(id);
    int64_t b = 0;
    for (int64_t length : values) program.set_integer(id, length, b++);
    return id;
  };
  graph::Sdpa node;
  node.q = add("q", {kBatch, kHeads, rows, kColumns});
  node.k = add("k", {kBatch, 1, keys, kColumns}), node.v = add("v", {kBatch, 1, keys, kColumns});
  node.attention.sink = add("sink", {1, kHeads, 1, 1});
  program.set(node.attention.sink, NAN, 0, 0);
  node.attention.bias = add("bias", {1, 1, rows, keys});
  for (int64_t i = 0; i < rows; i += 3)
    for (int64_t j = 0; j < keys; ++j) program.set(node.attention.bias, -INFINITY, 0, 0, i, j);
  node.attention.padding_mask = true;
  node.attention.seq_len_q = lengths("seq_len_q", {rows, rows});
  node.attention.seq_len_kv = lengths("seq_len_kv", {keys, 0});
  node.o = result("o", {kBatch, kHeads, rows, kColumns});
  if (pair) node.max = result("max", {kBatch, kHeads, rows, 1});
  if (pair) node.sum_exp = result("sum_exp", {kBatch, kHeads, rows, 1});
  if (!pair) node.stats = result("stats", {kBatch, kHeads, rows, 1});
  graph.nodes = {{"attention", node}};
  return made;
}

TEST(NanSink, MakesItsRowsNan) {
  for (DataType dtype : {DataType::f32, DataType::f64})
    for (int64_t rows : {2, 40})
      for (int64_t keys : {30, 900})
        for (bool pair : {false, true}) {
          Forward made = forward(dtype, rows, keys, pair);
          const Status valid = graph::validate(made.program.graph);
          ASSERT_TRUE(valid.is_ok()) << valid.message();
          const auto exact = reference::evaluate(made.program.graph, made.program.buffers());
          ASSERT_TRUE(exact.is_ok()) << exact.status().message();
          for (engine::cpu::Isa isa : available_levels()) {
            SCOPED_TRACE(::testing::Message()
                         << engine::cpu::name(isa) << ", " << name(dtype) << ", " << rows
                         << " rows, " << keys << " keys" << (pair ? ", the pair" : ""));
            const ForcedLevel level(isa);
            Program done = made.program;
            const Status status = run(done, engine::cpu_engine());
            ASSERT_TRUE(status.is_ok()) << status.message();
            const reference::Buffers buffers = done.buffers();
            const reference::Values got(done.graph, buffers, {});
            for (graph::TensorId id : made.results)
              for (int64_t b = 0; b < kBatch; ++b)
                for (int64_t h = 0; h < kHeads; ++h)
                  for (int64_t i = 0; i < rows; ++i)
                    for (int64_t d = 0; d < done.graph[id].dims[3]; ++d) {
                      const double expected = exact->read(id, b, h, i, d);
                      ASSERT_EQ(std::isnan(expected), h == 0);
                      if (h == 0)
                        ASSERT_TRUE(std::isnan(got.read(id, b, h, i, d))) << done.graph[id].name;
                      else
                        ASSERT_NEAR(got.read(id, b, h, i, d), expected,
                                    1e-5 * (1 + std::abs(expected)));
                    }
          }
        }
}

}  // namespace
}  // namespace heddle::testing
