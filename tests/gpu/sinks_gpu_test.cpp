// Sinks from one end of f32's range to the other: a row's whole weight goes there, or none, and
// what scores are taken to in log2 units may be beyond that range.
#include <cmath>

#include "gpu/gpu_test.h"
#include "reference/evaluate.h"
#include "support/compare.h"

namespace heddle::testing {
namespace {

using graph::TensorId;

struct Shape {
  DataType dtype;
  int64_t rows, keys, head_dim;
  bool backward = false;
};

/// The last is all that a row weighs.
const std::vector<double> kSinks = {-INFINITY, -3.4e38, -1e38, 0.5, 3.4e38};

/// A head of each sink; causal, so that the first rows see no key where there are more of them.
Program program_of(const Shape& shape) {
  Program program;
  program.graph.io_dtype = shape.dtype;
  program.graph.intermediate_dtype = program.graph.compute_dtype = DataType::f32;
  Random random(static_cast<uint64_t>(shape.keys));
  const int64_t heads = std::ssize(kSinks);
  const Dims queries{1, heads, shape.rows, shape.head_dim},
      keys{1, heads, shape.keys, shape.head_dim}, row{1, heads, shape.rows, 1};
  const auto add = [&](const char* name, DataType dtype, const Dims& dims) {
    const TensorId id = program.add(name, dtype, dims);
    program.allocate(id);
    return id;
  };
  const auto input = [&](const char* name, const Dims& dims) {
    const TensorId id = add(name, shape.dtype, dims);
    program.fill(id, [&] { return random.normal(); });
    return id;
  };
  graph::Sdpa op;
  graph::AttentionAttributes& a = op.attention;
  a.attn_scale = 0.125;
  a.right_bound = 0;
  a.sink = add("sink", DataType::f32, {1, heads, 1, 1});
  for (int64_t h = 0; h < heads; ++h) program.set(a.sink, kSinks[static_cast<size_t>(h)], 0, h);
  op.q = input("q", queries);
  op.k = input("k", keys);
  op.v = input("v", keys);
  op.o = add("o", shape.dtype, queries);
  op.stats = add("stats", DataType::f32, row);
  program.graph.nodes.push_back({"attention", op});
  if (!shape.backward) return program;
  const reference::Buffers buffers = program.buffers();
  reference::store_results(reference::evaluate(program.graph, buffers).value(), buffers);
  graph::SdpaBackward gradient;
  gradient.q = op.q, gradient.k = op.k, gradient.v = op.v, gradient.o = op.o;
  gradient.stats = op.stats;
  gradient.attention = a;
  gradient.d_o = input("dO", queries);
  gradient.d_q = add("dQ", shape.dtype, queries);
  gradient.d_k = add("dK", shape.dtype, keys);
  gradient.d_v = add("dV", shape.dtype, keys);
  gradient.d_sink = add("dSink", DataType::f32, {1, heads, 1, 1});
  program.graph.nodes = {{"gradient", gradient}};
  return program;
}

class SinksOnGpu : public OnGpu {};

TEST_F(SinksOnGpu, MayBeOfAnySize) {
  for (const bool backward : {false, true}) {
    for (const Shape& shape : {Shape{DataType::bf16, 70, 90, 64},
                               {DataType::bf16, 70, 90, 60},
                               {DataType::bf16, 3, 300, 64},
                               {DataType::f32, 70, 90, 64},
                               {DataType::f32, 70, 90, 60}}) {
      SCOPED_TRACE(fmt::format("{}, {} rows, {} keys, head_dim {}{}", name(shape.dtype), shape.rows,
                               shape.keys, shape.head_dim, backward ? ", backward" : ""));
      Shape one = shape;
      one.backward = backward;
      Built built = build(program_of(one));
      ASSERT_TRUE(built.executable.is_ok()) << built.executable.status().message();
      execute(built);
      EXPECT_TRUE(matches_definition(built));
    }
  }
}

}  // namespace
}  // namespace heddle::testing
