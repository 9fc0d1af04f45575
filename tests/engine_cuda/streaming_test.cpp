// Which kernels norm and rope problems get, and each refusal in words.
#include <gtest/gtest.h>

#include "engine/cuda/norm.h"
#include "engine/cuda/norm_backward.h"
#include "engine/cuda/rope.h"
#include "kernels/streaming_cases.h"

namespace heddle::engine::cuda {
namespace {

using problem::NormBackwardProblem;
using problem::NormProblem;
using problem::RopeProblem;

struct Norm {
  explicit Norm(NormProblem p)
      : problem(std::move(p)), shape(problem), config(configure_norm(problem, shape)) {}
  explicit Norm(const NormCase& c) : Norm(norm_of(c)) {}
  NormProblem problem;
  NormShape shape;
  Result<NormConfig> config;
};

TEST(NormConfig, RowsStayInRegistersAsLongAsTheyFit) {
  for (int64_t columns : {8, 64, 72, 1024, 1032, 2048, 4096, 8192, 16384}) {
    const Norm norm({.columns = columns});
    ASSERT_TRUE(norm.config.is_ok()) << norm.config.status().message();
    EXPECT_EQ(norm.shape.vector(), 8);
    EXPECT_TRUE(norm.config->in_registers);
    EXPECT_GE(norm.config->threads_per_row * norm.config->vectors * 8, columns);
  }
  EXPECT_FALSE(Norm({.columns = 16392}).config->in_registers);
  EXPECT_TRUE(Norm({.columns = 8192, .x = DataType::f32}).config->in_registers);
  EXPECT_FALSE(Norm({.columns = 8196, .x = DataType::f32}).config->in_registers);
}

TEST(NormConfig, VectorsAreAsWideAsRowsAndStridesAllow) {
  EXPECT_EQ(Norm({.columns = 4100}).shape.vector(), 4);
  EXPECT_EQ(Norm({.columns = 4098}).shape.vector(), 2);
  EXPECT_EQ(Norm({.columns = 4097}).shape.vector(), 1);
  EXPECT_EQ(Norm({.columns = 4096, .x = DataType::f64}).shape.vector(), 2);
  NormProblem gaps = norm_of({.columns = 64});
  gaps.sizes.layouts[static_cast<size_t>(gaps.structure.y)].strides[0] = 68;
  EXPECT_EQ(Norm(gaps).shape.vector(), 4);
  NormProblem spread = norm_of({.columns = 64});
  spread.sizes.layouts[static_cast<size_t>(spread.structure.weight)].strides[1] = 2;
  EXPECT_EQ(Norm(spread).shape.vector(), 1);
}

TEST(NormShape, JoinsDimsThatAllOperandsStepThroughAsOne) {
  const Norm scattered({.columns = 40, .scattered = true});
  ASSERT_TRUE(scattered.config.is_ok()) << scattered.config.status().message();
  EXPECT_EQ(scattered.shape.facts().row_dims, 3);
  EXPECT_EQ(scattered.shape.facts().column_dims, 2);
  EXPECT_EQ(scattered.shape.rows(), 64);
  NormProblem problem;
  problem.structure.operands = {{DataType::bf16}, {DataType::bf16}, {DataType::bf16}};
  const Dims dims{2, 1, 3, 4, 8}, dense{96, 7, 32, 8, 1};
  problem.sizes.layouts = {{dims, dense}, {{1, 1, 1, 4, 8}, {0, 0, 0, 8, 1}}, {dims, dense}};
  problem.structure.x = 0, problem.structure.weight = 1, problem.structure.y = 2,
  problem.structure.normalised_dims = 2;
  const Norm joined(problem);
  ASSERT_TRUE(joined.config.is_ok()) << joined.config.status().message();
  EXPECT_EQ(joined.shape.facts().row_dims, 1);
  EXPECT_EQ(joined.shape.facts().column_dims, 1);
  EXPECT_EQ(joined.shape.vector(), 8);
  EXPECT_EQ(joined.shape.extents().rows[0], 6);
  EXPECT_EQ(joined.shape.tensor(0).row_stride[0], 32);
  // A transposed y keeps them apart.
  problem.sizes.layouts[2].strides = {32, 0, 64, 8, 1};
  EXPECT_EQ(Norm(problem).shape.facts().row_dims, 2);
}

TEST(NormConfig, ArithmeticIsF64WhereAnyOperandIs) {
  EXPECT_FALSE(Norm({.x = DataType::f32}).shape.is_f64());
  EXPECT_TRUE(Norm({.weight = DataType::f64}).shape.is_f64());
  EXPECT_TRUE(Norm({.x = DataType::f64}).shape.is_f64());
}

TEST(NormBackwardConfig, TypesThatFillRegistersTakeMoreThreads) {
  const auto configured = [](const NormCase& c) {
    const NormBackwardProblem problem = norm_backward_of(c);
    NormShape shape(problem);
    return configure_norm_backward(problem, shape).value();
  };
  const NormBackwardConfig plain = configured({.columns = 4096});
  EXPECT_EQ(plain.threads_per_row, 128);
  EXPECT_EQ(plain.vectors, 4);
  EXPECT_FALSE(plain.prefetch);
  const NormBackwardConfig heavy =
      configured({.columns = 4096, .weight = DataType::f64, .bias = true});
  EXPECT_GT(heavy.threads_per_row, 128);
  EXPECT_TRUE(configured({.columns = 16384}).in_registers);
  EXPECT_FALSE(configured({.columns = 16384}).d_bias_shared);
  const NormBackwardConfig long_rows = configured({.columns = 16384, .bias = true});
  EXPECT_TRUE(long_rows.in_registers);
  EXPECT_TRUE(long_rows.d_bias_shared);
  EXPECT_FALSE(configured({.columns = 8192, .bias = true}).d_bias_shared);
  EXPECT_FALSE(configured({.columns = 40000, .bias = true}).in_registers);
  EXPECT_TRUE(configured({.columns = 64}).prefetch);
}

// A row's means are two numbers more, where rows do not fit registers in the workspace too.
TEST(NormBackwardConfig, OfLayerNormKeepsBothGradientsOfColumns) {
  const auto lowered = [](bool centred, int64_t columns) {
    return lower_norm_backward(
               norm_backward_of(
                   {.columns = columns, .rows = 100, .bias = true, .centred = centred}),
               *target_named("sm_90a"))
        .value();
  };
  for (int64_t columns : {4096, 40000}) {
    const Lowering rms = lowered(false, columns), layer = lowered(true, columns);
    EXPECT_EQ("layer" + rms.description.substr(3), layer.description);
    EXPECT_EQ(layer.workspace_bytes - rms.workspace_bytes, columns == 4096 ? 0 : 4 * 100);
    ASSERT_EQ(layer.kernels.size(), rms.kernels.size());
    for (const LoweredKernel& kernel : layer.kernels)
      EXPECT_TRUE(kernel.name.starts_with("layer_norm_backward")) << kernel.name;
  }
}

template <class Refused>
void expect_says(const Refused& refused, const char* words) {
  ASSERT_FALSE(refused.is_ok()) << words;
  EXPECT_NE(refused.status().message().find(words), std::string::npos)
      << refused.status().message();
}

TEST(NormConfig, RefusesInWords) {
  const NormProblem good = norm_of({});
  NormProblem p = good;
  p.structure.operands[0].dtype = DataType::i32;
  expect_says(Norm(p).config, "x is i32, but the kernels take");
  p = good;
  p.structure.type(p.structure.weight).on_host = true;
  expect_says(Norm(p).config, "weight is passed by value");
  p = good;
  p.structure.epsilon = p.structure.x;
  expect_says(Norm(p).config, "epsilon is bf16");
  expect_says(Norm({.columns = 8, .rows = int64_t{1} << 31}).config, "up to 2^30 rows");
  p = norm_of({.centred = true});
  p.structure.type(p.structure.mean).on_host = true;
  expect_says(Norm(p).config, "layer_norm mean is passed by value");
}

TEST(RopeConfig, PairsAreAsManyAsDimsAndStridesAllow) {
  const auto configured = [](const RopeCase& c) { return configure_rope({rope_of(c)}).value(); };
  EXPECT_EQ(configured({}).pairs, 8);
  EXPECT_EQ(configured({.interleaved = true}).pairs, 4);
  EXPECT_EQ(configured({.x = DataType::f32}).pairs, 4);
  EXPECT_EQ(configured({.x = DataType::f64, .interleaved = true}).pairs, 1);
  EXPECT_EQ(configured({.rope_dim = 120}).pairs, 4);
  EXPECT_EQ(configured({.head_dim = 70, .rope_dim = 6}).pairs, 1);
  EXPECT_TRUE(configured({.interleaved = true, .gap = 2}).aligned);
  const streaming::RopeConfig odd = configured({.interleaved = true, .gap = 3});
  EXPECT_EQ(odd.pairs, 1);
  EXPECT_FALSE(odd.aligned);
  EXPECT_EQ(configured({.x = DataType::f64}).number, Element::f64);
  EXPECT_TRUE(configured({.ragged = true}).ragged);
}

TEST(RopeConfig, RefusesInWords) {
  const RopeProblem good = rope_of({.positions = true});
  RopeProblem p = good;
  p.structure.type(p.structure.rope.angles).dtype = DataType::f64;
  expect_says(configure_rope({p}), "angles is f64, but the kernel takes f32");
  p = good;
  p.sizes.layout(p.structure.x).strides[3] = 2;
  expect_says(configure_rope({p}), "expected a last one of 1");
  p = rope_of({.ragged = true});
  const problem::OperandId offsets = p.structure.type(p.structure.x).storage.offsets();
  p.sizes.layout(offsets).strides = {2, 2, 2, 2};
  expect_says(configure_rope({p}), "ragged offset has dims");
  p = good;
  const int64_t batch = p.sizes.layout(p.structure.x).dims[0];
  ASSERT_GT(batch, 1);
  const auto lengths = static_cast<problem::OperandId>(p.structure.operands.size());
  p.structure.operands.push_back({DataType::i32});
  p.sizes.layouts.push_back({{batch, 1, 1, 1}, {1, 1, 1, 1}});
  EXPECT_TRUE(configure_rope({.rope = p, .lengths = lengths}).is_ok());
  p.sizes.layout(lengths).strides[0] = 2;
  expect_says(configure_rope({.rope = p, .lengths = lengths}), "seq_len has dims");
  // An offset may be passed by value, positions of rows may not.
  p = good;
  p.structure.type(p.structure.rope.positions).on_host = true;
  EXPECT_TRUE(configure_rope({p}).is_ok());
  p.structure.rope.positions_per_row = true;
  expect_says(configure_rope({p}), "positions is passed by value");
}

}  // namespace
}  // namespace heddle::engine::cuda
