// Scores that are infinite before a bias joins them: a key of -inf weighs nothing, whatever the
// scale, and a row of no other key gives 0.
#include <gtest/gtest.h>

#include <cmath>

#include "engine/cpu/engine.h"
#include "engine_cpu/levels.h"
#include "graph/validate.h"
#include "support/compare.h"
#include "support/program.h"
#include "support/run.h"

namespace heddle::testing {
namespace {

constexpr int64_t kKeys = 40, kColumns = 8;

/// Every third key is as far from the queries as numbers go; with `all`, every one is.
Program attention(int64_t rows, double scale, bool all) {
  Program program;
  Random random(3);
  graph::Graph& graph = program.graph;
  graph.io_dtype = graph.intermediate_dtype = graph.compute_dtype = DataType::f32;
  const auto made = [&](const char* name, Dims dims) {
    const graph::TensorId id = program.add(name, DataType::f32, std::move(dims));
    program.allocate(id);
    return id;
  };
  graph::Sdpa node;
  node.q = made("q", {1, 1, rows, kColumns});
  node.k = made("k", {1, 1, kKeys, kColumns});
  node.v = made("v", {1, 1, kKeys, kColumns});
  for (graph::TensorId id : {node.k, node.v}) program.fill(id, [&] { return random.normal(); });
  program.fill(node.q, [&] { return 0.1 + std::abs(random.normal()); });
  for (int64_t j = 0; j < kKeys; ++j)
    if (all || j % 3 == 0) program.set(node.k, scale > 0 ? -INFINITY : INFINITY, 0, 0, j, 0);
  node.attention.attn_scale = scale;
  node.attention.bias = made("bias", {1, 1, 1, kKeys});
  program.fill(node.attention.bias, [&] { return random.normal(); });
  node.o = made("o", {1, 1, rows, kColumns});
  node.stats = made("stats", {1, 1, rows, 1});
  graph.nodes = {{"attention", node}};
  return program;
}

TEST(InfiniteScores, WeighNothingBesideABias) {
  for (int64_t rows : {1, 30})                  // keys where they lie, and packed
    for (double scale : {1.0, 0.1, 0.3, -0.7})  // f32 has less of it, more of it, or all
      for (bool all : {false, true}) {
        Program program = attention(rows, scale, all);
        const Status valid = graph::validate(program.graph);
        ASSERT_TRUE(valid.is_ok()) << valid.message();
        const Definition definition(program, DataType::f32);
        for (engine::cpu::Isa isa : available_levels()) {
          SCOPED_TRACE(::testing::Message() << engine::cpu::name(isa) << ", " << rows
                                            << " rows, scale " << scale << ", all " << all);
          const ForcedLevel level(isa);
          Program done = program;
          const Status status = run(done, engine::cpu_engine());
          ASSERT_TRUE(status.is_ok()) << status.message();
          EXPECT_TRUE(definition.is_met_by(done));
        }
      }
}

}  // namespace
}  // namespace heddle::testing
