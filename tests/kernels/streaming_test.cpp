// The streaming kernels: every choice of threads over the types that fill most registers, dense and
// scattered rows, each form of rope, and numbers passed by value.
#include <gtest/gtest.h>

#include "engine/cuda/host_values.h"
#include "engine/cuda/rope.h"
#include "kernels/compiled.h"
#include "kernels/lowered.h"
#include "kernels/streaming_cases.h"
#include "streaming/arguments.h"

namespace heddle::engine::cuda {
namespace {

constexpr const char* kArchitectures[] = {"sm_80", "sm_90a"};

void expect_clean_everywhere(const problem::Problem& problem) {
  for (const char* architecture : kArchitectures)
    expect_clean(lowered(problem, architecture), architecture);
}

std::string title(const NormCase& c) {
  return fmt::format("{}{}_{}_{}{}{}{}", c.centred ? "centred_" : "", name(c.x), name(c.weight),
                     c.columns, c.bias ? "_bias" : "", c.scattered ? "_scattered" : "",
                     c.residual ? "_residual" : "");
}

class NormKernels : public testing::TestWithParam<NormCase> {};

TEST_P(NormKernels, Forward) { expect_clean_everywhere(norm_of(GetParam())); }

TEST_P(NormKernels, Backward) { expect_clean_everywhere(norm_backward_of(GetParam())); }

std::vector<NormCase> norm_cases() {
  using enum DataType;
  std::vector<NormCase> all;
  for (int64_t columns : {64, 1024, 2048, 4096, 8192, 16384, 40000}) {
    all.push_back({.columns = columns});
    all.push_back({.columns = columns, .weight = f32, .bias = true});
    all.push_back({.columns = columns, .x = f32, .weight = f16});
    all.push_back({.columns = columns, .x = f64, .weight = f64, .bias = true});
  }
  for (int64_t columns : {40, 2000, 3000}) {
    all.push_back({.columns = columns, .bias = true, .scattered = true});
    all.push_back({.columns = columns, .x = f16, .weight = f64, .bias = true});
  }
  all.push_back({.columns = 1001, .x = f32, .weight = f32});
  // The same code but for the rows' means: each choice of threads once, and what fills most.
  for (int64_t columns : {64, 1024, 2048, 4096, 8192, 16384, 40000})
    all.push_back({.columns = columns, .bias = true, .centred = true});
  for (int64_t columns : {4096, 40000}) {
    all.push_back({.columns = columns, .x = f32, .weight = f16, .bias = true, .centred = true});
    all.push_back({.columns = columns, .x = f64, .weight = f64, .bias = true, .centred = true});
  }
  all.push_back({.columns = 3000, .bias = true, .centred = true, .scattered = true});
  return all;
}

INSTANTIATE_TEST_SUITE_P(Matrix, NormKernels, testing::ValuesIn(norm_cases()),
                         [](const auto& info) { return title(info.param); });

class ResidualNormKernels : public testing::TestWithParam<NormCase> {};

TEST_P(ResidualNormKernels, Forward) { expect_clean_everywhere(norm_of(GetParam())); }

/// Sums stay in f32: twice the registers of rows of 16 bits.
std::vector<NormCase> residual_norm_cases() {
  using enum DataType;
  std::vector<NormCase> all;
  for (bool centred : {false, true}) {
    for (int64_t columns : {64, 1024, 2048, 4096, 8192, 16384, 40000})
      all.push_back({.columns = columns, .bias = centred, .centred = centred, .residual = true});
    for (int64_t columns : {4096, 40000}) {
      all.push_back(
          {.columns = columns, .x = f32, .weight = f16, .centred = centred, .residual = true});
      all.push_back(
          {.columns = columns, .x = f64, .weight = f64, .centred = centred, .residual = true});
    }
    all.push_back({.columns = 3000, .centred = centred, .scattered = true, .residual = true});
  }
  return all;
}

INSTANTIATE_TEST_SUITE_P(Matrix, ResidualNormKernels, testing::ValuesIn(residual_norm_cases()),
                         [](const auto& info) { return title(info.param); });

TEST(RopeKernels, Compile) {
  using enum DataType;
  const RopeCase cases[] = {{},
                            {.interleaved = true},
                            {.rope_dim = 64, .tables = true, .inverse = true},
                            {.x = f32, .y = f32, .positions = true},
                            {.x = f16, .y = f32, .positions = true, .per_row = true},
                            {.x = f64, .y = f64, .interleaved = true},
                            {.x = f64, .y = f64, .ragged = true},
                            {.head_dim = 70, .rope_dim = 6, .ragged = true},
                            {.interleaved = true, .gap = 3}};
  for (const RopeCase& c : cases) expect_clean_everywhere(rope_of(c));
  for (const char* architecture : kArchitectures) {
    for (const RopeCase& c : {RopeCase{}, {.interleaved = true}, {.rope_dim = 64, .tables = true}})
      expect_clean(
          lower_rope_step({.rope = rope_of(c), .rounded = true}, *target_named(architecture)),
          architecture);
  }
}

TEST(CacheAppendKernels, Compile) {
  using enum DataType;
  using Kind = problem::Storage::Kind;
  const CacheAppendCase cases[] = {
      {},
      {.packed = true, .norms = true},
      {.x = f32, .cache = f32, .interleaved = true, .positions = true},
      {.head_dim = 256, .rope_dim = 64, .x = f16, .cache = i8, .packed = true},
      {.cache = u8, .storage = Kind::ring, .table_gap = 1},
      {.cache = u8, .gap = 1, .far_apart = true},
      {.cache = f8e4m3, .norms = true, .storage = Kind::paged},
      {.head_dim = 70, .rope_dim = 6, .cache = f32, .gap = 3},
      {.head_dim = 1024, .rope_dim = 0, .cache = u8, .gap = 1}};
  for (const CacheAppendCase& c : cases) expect_clean_everywhere(append_of(c));
}

TEST(PointwiseKernels, Compile) {
  using enum DataType;
  using problem::ScoreOp;
  std::vector<ScoreOp> all;
  for (int op = static_cast<int>(ScoreOp::add); op <= static_cast<int>(ScoreOp::select); ++op)
    all.push_back(static_cast<ScoreOp>(op));
  const std::vector<ScoreOp> silu{ScoreOp::sigmoid, ScoreOp::multiply};
  const PointwiseCase cases[] = {
      {.functions = silu},
      {.inputs = {f32, f32}, .results = {f32}, .functions = silu},
      {.inputs = {f16, f32, bf16}, .results = {f16, f32}, .broadcast = true},
      {.inputs = {boolean, i32, f32}, .results = {i32, boolean, bf16}},
      {.inputs = {bf16, f32}, .functions = silu, .strided = true},
      {.functions = {ScoreOp::exponential, ScoreOp::error_function}, .columns = 33},
      {.inputs = {f32}, .results = {f32}, .functions = {ScoreOp::power, ScoreOp::modulo}},
      {.functions = all},
      {.inputs = std::vector<DataType>(30, bf16), .functions = silu},
      {.inputs = std::vector<DataType>(60, f32), .results = {f32}, .functions = silu}};
  for (const PointwiseCase& c : cases) expect_clean_everywhere(pointwise_of(c));
}

TEST(CopyKernels, Compile) {
  using enum DataType;
  const CopyCase cases[] = {
      {},
      {.x = bf16, .y = f32},
      {.x = f32, .y = f16},
      {.x_columns = 36, .y_columns = 40},
      {.x_columns = 40, .y_columns = 36, .ragged = true},
      {.x = f32, .y = f32, .x_columns = 33, .y_columns = 40},
      {.x = f32, .y = bf16, .x_columns = 40, .y_columns = 33},
      {.x = i8, .codes = true},
      {.x = u8, .y = f16, .x_columns = 36, .y_columns = 40, .codes = true},
      {.x = f8e4m3, .y = f32, .x_columns = 33, .y_columns = 33, .codes = true}};
  for (const CopyCase& c : cases) {
    for (const char* architecture : kArchitectures)
      expect_clean(lower_copy(copy_of(c), *target_named(architecture)), architecture);
  }
}

TEST(HostValuesKernel, Compiles) {
  for (int count : {streaming::kFewHostValues, streaming::kMaxHostValues}) {
    Lowering lowering;
    lowering.add_kernel(host_values_unit(static_cast<size_t>(count)), count);
    for (const char* architecture : kArchitectures) expect_clean(lowering, architecture);
  }
}

}  // namespace
}  // namespace heddle::engine::cuda
