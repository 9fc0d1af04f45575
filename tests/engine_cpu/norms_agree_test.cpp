// The norm of an append's heads is rms_norm: of numbers too large for f32 to hold their squares, or
// too small, as well.
#include <gtest/gtest.h>

#include <cmath>

#include "engine/cpu/engine.h"
#include "engine_cpu/levels.h"
#include "graph/validate.h"
#include "support/program.h"
#include "support/run.h"

namespace heddle::testing {
namespace {

constexpr int64_t kHeads = 2, kRows = 3;

/// Rows of normal numbers times `size`, by both; y and q_out are the last two tensors.
Program norms(DataType dtype, int64_t columns, double size, double epsilon) {
  Program program;
  Random random(7);
  graph::Graph& graph = program.graph;
  graph.io_dtype = dtype, graph.intermediate_dtype = graph.compute_dtype = DataType::f32;
  const auto made = [&](const char* name, DataType type, Dims dims, auto value) {
    const graph::TensorId id = program.add(name, type, std::move(dims));
    program.allocate(id);
    program.fill(id, value);
    return id;
  };
  const Dims rows{1, kHeads, kRows, columns};
  graph::RmsNorm norm;
  norm.x = made("x", dtype, rows, [&] { return size * random.normal(); });
  norm.scale =
      made("weight", DataType::f32, {1, 1, 1, columns}, [&] { return random.uniform(0.5, 1.5); });
  norm.epsilon = made("epsilon", DataType::f32, {1, 1, 1, 1}, [&] { return epsilon; });
  norm.y = made("y", dtype, rows, [] { return NAN; });
  graph::CacheAppend append;
  append.q = norm.x, append.q_norm = norm.scale, append.q_epsilon = epsilon;
  append.q_out = made("q_out", dtype, rows, [] { return NAN; });
  graph.nodes = {{"norm", norm}, {"append", append}};
  return program;
}

/// Equal, or as near as sums in another order leave them.
bool agree(DataType dtype, double a, double b) {
  if (std::isnan(a) || std::isnan(b)) return std::isnan(a) && std::isnan(b);
  if (std::isinf(a) || std::isinf(b)) return a == b;
  return std::fabs(a - b) <= (dtype == DataType::f32 ? 1e-6 : 8e-3) * std::fabs(b);
}

TEST(Norms, OfAnAppendAndARowAgree) {
  for (DataType dtype : {DataType::f32, DataType::bf16})
    for (int64_t columns : {8, 64, 100})
      for (double size : {1e-40, 1e-19, 1e-15, 1.0, 1e15, 3e19, 1e25, 1e37}) {
        // Beside the smallest numbers there is no other.
        Program program = norms(dtype, columns, size, size < 1e-3 ? 0 : 1e-6);
        const Status valid = graph::validate(program.graph);
        ASSERT_TRUE(valid.is_ok()) << valid.message();
        const auto y = static_cast<graph::TensorId>(program.graph.tensors.size()) - 2;
        for (engine::cpu::Isa isa : available_levels()) {
          SCOPED_TRACE(::testing::Message() << engine::cpu::name(isa) << ", " << name(dtype) << " "
                                            << columns << " columns of " << size);
          const ForcedLevel level(isa);
          const Status status = run(program, engine::cpu_engine());
          ASSERT_TRUE(status.is_ok()) << status.message();
          const reference::Buffers buffers = program.buffers();
          const reference::Values got(program.graph, buffers, {});
          for (int64_t h = 0; h < kHeads; ++h)
            for (int64_t i = 0; i < kRows; ++i)
              for (int64_t d = 0; d < columns; ++d)
                ASSERT_TRUE(agree(dtype, got.read(y + 1, 0, h, i, d), got.read(y, 0, h, i, d)))
                    << got.read(y + 1, 0, h, i, d) << " beside " << got.read(y, 0, h, i, d);
          // Their squares are beyond f32: as rsqrt(inf) says.
          if (size > 1e19) EXPECT_EQ(got.read(y, 0, 0, 0, 0), 0);
        }
      }
}

}  // namespace
}  // namespace heddle::testing
