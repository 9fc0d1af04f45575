// Scales of scores that no attention has by itself: 0, negative ones, and such that beside other
// factors are subnormal numbers, which a GPU may take for 0.
#include "gpu/attention_program.h"

namespace heddle::testing {
namespace {

using graph::TensorId;

class ScalesOnGpu : public OnGpu {
 protected:
  /// Causal, from the last key on: each row has hidden keys beside others. Q and K times `size`.
  void expect_definition(const AttentionShape& shape, double scale, bool on_device = false,
                         double size = 1) {
    const auto change = [&](Program& program, graph::AttentionAttributes& a) {
      a.right_bound = 0;
      a.diagonal_alignment = graph::DiagonalAlignment::bottom_right;
      a.attn_scale = scale;
      if (!on_device) return;
      a.attn_scale.reset();
      a.attn_scale_tensor = program.add("scale", DataType::f32, {1, 1, 1, 1});
      program.allocate(a.attn_scale_tensor);
      program.set(a.attn_scale_tensor, scale, 0);
    };
    const auto value = [&](Input input, int64_t, double normal) {
      return input == Input::q || input == Input::k ? size * normal : normal;
    };
    Built built = build(attention_program(shape, change, value));
    ASSERT_TRUE(built.executable.is_ok()) << built.executable.status().message();
    execute(built);
    EXPECT_TRUE(matches_definition(built))
        << shape << ", scale " << scale << (on_device ? ", on the device" : "") << ", "
        << (*built.executable)->description();
  }
};

constexpr DataType kTypes[] = {DataType::bf16, DataType::f32};

TEST_F(ScalesOnGpu, ForwardMatchesTheDefinition) {
  for (const double scale : {0.0, -0.25, 1e-12, 1e-30, 1e-39, -1e-39}) {
    for (const DataType dtype : kTypes) {
      expect_definition({.dtype = dtype}, scale);
      expect_definition({.dtype = dtype, .rows = 3, .keys = 300}, scale);
    }
    expect_definition({}, scale, true);
  }
}

// Pairs of f16 have units as small as their heads, which are factors of scores beside the scale.
TEST_F(ScalesOnGpu, ForwardOfSmallOperandsMatchesTheDefinition) {
  for (const double scale : {1e-3, 1e-6, 1e-10})
    expect_definition({.dtype = DataType::f32}, scale, false, 1e-9);
}

TEST_F(ScalesOnGpu, BackwardMatchesTheDefinition) {
  for (const double scale : {0.0, -0.25, 1e-12, 1e-30})
    for (const DataType dtype : kTypes)
      for (const int64_t head_dim : {64, 136})
        expect_definition({.dtype = dtype, .head_dim = head_dim, .backward = true}, scale);
}

// A slope of 1e-4 beside weights would leave few of f16's bits, and one of 1e5 none.
TEST_F(ScalesOnGpu, ConstantFactorsOfSlopesMayBeOfAnySize) {
  using graph::PointwiseMode;
  const auto expect_definition = [&](int64_t head_dim, bool bent, double factor) {
    const AttentionShape shape{.dtype = DataType::f16, .head_dim = head_dim, .backward = true};
    const auto change = [&](Program& program, graph::AttentionAttributes& a) {
      a.attn_scale = 1;
      ScoreSteps steps(program, shape.cells());
      TensorId x = steps.score();
      if (bent) x = steps.apply(PointwiseMode::tanh_fwd, {x});
      steps.apply(PointwiseMode::mul, {x, steps.constant(factor)});
      a.score_mod = steps.modifier();
    };
    const auto value = [&](Input input, int64_t, double normal) {
      if (input == Input::d_o) return normal;
      if (factor < 1) return input == Input::q && !bent ? 30 * normal : normal;
      return (input == Input::v ? 1 : 1e-3) * normal;
    };
    Built built = build(attention_program(shape, change, value));
    ASSERT_TRUE(built.executable.is_ok()) << built.executable.status().message();
    execute(built);
    EXPECT_TRUE(matches_definition(built))
        << shape << (bent ? ", tanh times " : ", times ") << factor;
  };
  for (const int64_t head_dim : {64, 136})
    for (const bool bent : {false, true})
      for (const double factor : {1e-4, 1e5}) expect_definition(head_dim, bent, factor);
}

}  // namespace
}  // namespace heddle::testing
