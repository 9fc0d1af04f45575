// Scales of scores that no attention has by itself: 0, negative ones, and such that beside other
// factors are subnormal numbers, which a GPU may take for 0.
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
  bool backward = false, on_device = false;
  double size = 1;  ///< of Q's numbers and K's
};

/// Causal, from the last key on: each row has hidden keys beside others.
Program program_of(const Shape& shape, double scale) {
  Program program;
  program.graph.io_dtype = shape.dtype;
  program.graph.intermediate_dtype = program.graph.compute_dtype = DataType::f32;
  Random random(static_cast<uint64_t>(shape.keys));
  const Dims queries{1, 2, shape.rows, shape.head_dim}, keys{1, 2, shape.keys, shape.head_dim},
      row{1, 2, shape.rows, 1};
  const auto add = [&](const char* name, DataType dtype, const Dims& dims) {
    const TensorId id = program.add(name, dtype, dims);
    program.allocate(id);
    return id;
  };
  const auto input = [&](const char* name, const Dims& dims, double size = 1) {
    const TensorId id = add(name, shape.dtype, dims);
    program.fill(id, [&] { return size * random.normal(); });
    return id;
  };
  graph::Sdpa op;
  graph::AttentionAttributes& a = op.attention;
  a.right_bound = 0;
  a.diagonal_alignment = graph::DiagonalAlignment::bottom_right;
  if (shape.on_device) {
    a.attn_scale_tensor = add("scale", DataType::f32, {1, 1, 1, 1});
    program.set(a.attn_scale_tensor, scale, 0);
  } else {
    a.attn_scale = scale;
  }
  op.q = input("q", queries, shape.size);
  op.k = input("k", keys, shape.size);
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
  program.graph.nodes = {{"gradient", gradient}};
  return program;
}

class ScalesOnGpu : public OnGpu {
 protected:
  void expect_definition(const Shape& shape, double scale) {
    SCOPED_TRACE(fmt::format("scale {}, {}, {} rows, {} keys, head_dim {}{}{}", scale,
                             name(shape.dtype), shape.rows, shape.keys, shape.head_dim,
                             shape.backward ? ", backward" : "",
                             shape.on_device ? ", on the device" : ""));
    Built built = build(program_of(shape, scale));
    ASSERT_TRUE(built.executable.is_ok()) << built.executable.status().message();
    execute(built);
    EXPECT_TRUE(matches_definition(built)) << (*built.executable)->description();
  }
};

constexpr DataType kTypes[] = {DataType::bf16, DataType::f32};

TEST_F(ScalesOnGpu, ForwardMatchesTheDefinition) {
  for (const double scale : {0.0, -0.25, 1e-12, 1e-30, 1e-39, -1e-39}) {
    for (const DataType dtype : kTypes) {
      expect_definition({dtype, 70, 90, 64}, scale);
      expect_definition({dtype, 3, 300, 64}, scale);
    }
    expect_definition({DataType::bf16, 70, 90, 64, false, true}, scale);
  }
}

// Pairs of f16 have units as small as their heads, which are factors of scores beside the scale.
TEST_F(ScalesOnGpu, ForwardOfSmallOperandsMatchesTheDefinition) {
  for (const double scale : {1e-3, 1e-6, 1e-10})
    expect_definition(
        {.dtype = DataType::f32, .rows = 70, .keys = 90, .head_dim = 64, .size = 1e-9}, scale);
}

TEST_F(ScalesOnGpu, BackwardMatchesTheDefinition) {
  for (const double scale : {0.0, -0.25, 1e-12, 1e-30})
    for (const DataType dtype : kTypes)
      for (const int64_t head_dim : {64, 136})
        expect_definition({dtype, 70, 90, head_dim, true}, scale);
}

}  // namespace
}  // namespace heddle::testing
