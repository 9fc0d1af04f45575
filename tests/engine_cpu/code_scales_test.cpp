// Scales of codes near the ends of f32's range: a row's O is a mean of its values, and a number
// wherever these are numbers, though their sum is none.
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

Program attention(DataType codes, int64_t rows, int64_t keys, double v_scale) {
  constexpr int64_t kHeads = 2, kColumns = 16;
  Program program;
  Random random(7);
  graph::Graph& graph = program.graph;
  graph.io_dtype = graph.intermediate_dtype = graph.compute_dtype = DataType::f32;
  const auto made = [&](const char* name, DataType dtype, Dims dims, auto value) {
    const graph::TensorId id = program.add(name, dtype, std::move(dims));
    program.allocate(id);
    program.fill(id, value);
    return id;
  };
  const auto code = [&]() -> double {
    if (codes == DataType::i8) return static_cast<double>(random.integer(-100, 127));
    if (codes == DataType::u8) return static_cast<double>(random.integer(0, 255));
    return random.normal();
  };
  const int64_t elements = codes == DataType::u8 ? kColumns / 2 : kColumns;
  graph::Sdpa node;
  node.q = made("q", DataType::f32, {1, kHeads, rows, kColumns}, [&] { return random.normal(); });
  node.k = made("k", codes, {1, 1, keys, elements}, code);
  node.v = made("v", codes, {1, 1, keys, elements}, code);
  // Each column has its own, one of them of the other sign.
  int64_t column = 0;
  const auto scales = [&](double scale) {
    return [&column, scale] { return scale * (column++ % kColumns == 3 ? -0.5 : 1); };
  };
  node.k_scale = made("k_scale", DataType::f32, {1, 1, 1, kColumns}, scales(1));
  node.v_scale = made("v_scale", DataType::f32, {1, 1, 1, kColumns}, scales(v_scale));
  node.attention.attn_scale = 0.01;
  node.o = program.add("o", DataType::f32, {1, kHeads, rows, kColumns});
  program.allocate(node.o);
  graph.nodes = {{"attention", node}};
  return program;
}

TEST(CodeScales, MayBeAsLargeAsValuesStayNumbers) {
  for (DataType codes : {DataType::i8, DataType::u8, DataType::f8e4m3})
    for (int64_t rows : {1, 3, 40})
      for (int64_t keys : {60, 900}) {  // 900: in parts
        const double v_scale = codes == DataType::i8 ? 2e36 : codes == DataType::u8 ? 4e37 : 6e37;
        Program program = attention(codes, rows, keys, v_scale);
        const Status valid = graph::validate(program.graph);
        ASSERT_TRUE(valid.is_ok()) << valid.message();
        const Definition definition(program, DataType::f32);
        for (engine::cpu::Isa isa : available_levels()) {
          SCOPED_TRACE(::testing::Message() << engine::cpu::name(isa) << ", " << name(codes) << ", "
                                            << rows << " rows, " << keys << " keys");
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
