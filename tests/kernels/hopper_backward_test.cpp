// The Hopper attention backward: every choice of tiles with every kind of mask, in any order and
// in a fixed one, and every feature that changes its code, alone and piled up.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "engine/cuda/attention_backward_sm90.h"
#include "kernels/cases.h"
#include "kernels/compiled.h"

namespace heddle::engine::cuda {
namespace {

using problem::ScoreOp;

class HopperBackward : public testing::TestWithParam<Case> {};

TEST_P(HopperBackward, Compiles) {
  const std::string& architecture = GetParam().architecture;
  problem::AttentionBackwardProblem problem = backward_of(GetParam());
  if (std::max(GetParam().qk_dim, GetParam().v_dim) > 128 || GetParam().dtype == DataType::f32)
    problem.structure.load_gradients.clear();  // beside Hopper's kernels, not of them
  const Result<BackwardSm90Config> config = configure_backward_sm90(problem);
  ASSERT_TRUE(config.is_ok()) << config.status().message();
  const auto& [prepare, main, finish, sink, load] = kBackwardSm90Names;
  // Tensor copies in, bulk copies of the row statistics, sums of dQ out: in bulk or by four, or
  // none.
  std::vector<Instructed> instructed{{main, {"HGMMA", "UTMALDG", "UBLKCP"}}};
  if (!config->all_keys)
    instructed[0].instructions.push_back(config->by_gradient || config->parts > 1 ? "REDG"
                                                                                  : "UBLKRED");
  if (config->load_gradient && !config->tiled_gradient)
    instructed.push_back({load, {"HGMMA", "UTMALDG", "UBLKCP"}});
  expect_clean(lower_backward_sm90(problem, *target_named(architecture)), architecture, instructed);
}

/// With what the score reads in every cell.
std::vector<std::vector<Feature>> tiled_features() {
  using F = Feature;
  return {{F::bias},
          {F::boolean_mask},
          {F::window, F::lengths, F::bias, F::log2, F::sink, F::deterministic},
          {F::window, F::lengths, F::boolean_mask, F::deterministic},
          {F::causal, F::bias, F::philox}};
}

bool is_of_angles(ScoreOp function) {
  return function == ScoreOp::sine || function == ScoreOp::cosine || function == ScoreOp::tangent;
}

bool has_light_derivative(ScoreOp function) {
  return function == ScoreOp::divide || function == ScoreOp::power ||
         function == ScoreOp::reciprocal || function == ScoreOp::tangent_hyperbolic ||
         function == ScoreOp::sigmoid;
}

/// With the rows' maxima and sums: what scores are made of, what else is read beside them, and what
/// leaves the fewest registers.
std::vector<std::vector<Feature>> features_with_statistics() {
  using F = Feature;
  std::vector<std::vector<Feature>> all{{},
                                        {F::causal, F::soft_cap},
                                        {F::bias},
                                        {F::window, F::lengths, F::boolean_mask, F::sink},
                                        {F::causal, F::alibi, F::philox, F::deterministic},
                                        {F::causal, F::log2, F::sink}};
  for (std::vector<Feature>& features : all) features.push_back(F::statistics);
  return all;
}

std::vector<Case> cases() {
  std::vector<Case> all;
  const auto add = [&](int qk, int v, std::vector<Feature> features,
                       DataType dtype = DataType::bf16, int64_t length = 512) {
    all.push_back({dtype, qk, v, std::move(features), "sm_90a", length});
  };
  using F = Feature;
  // One group of consumers by two blocks on a processor, and blocks that have all keys.
  for (auto [dim, length] : {std::pair{32, 64}, {64, 64}, {64, 128}, {64, 272}, {128, 128}}) {
    for (const auto& features :
         {std::vector<F>{},
          {F::causal},
          {F::lengths},
          {F::soft_cap},
          {F::bias},
          {F::wide_results},
          {F::window, F::lengths, F::alibi, F::log2, F::sink, F::deterministic, F::statistics},
          {F::window, F::ragged, F::sink, F::deterministic},
          {F::causal, F::lengths, F::boolean_mask},
          {F::causal, F::philox, F::bias}})
      add(dim, dim, features, DataType::bf16, length);
  }
  for (int dim : {64, 128}) {
    for (const auto& mask : {std::vector<F>{}, {F::causal}, {F::window}}) {
      add(dim, dim, mask);
      std::vector<F> ordered = mask;
      ordered.push_back(F::deterministic);
      add(dim, dim, ordered);
    }
    for (F feature : {F::soft_cap, F::alibi, F::log2, F::sink, F::lengths, F::philox, F::threefry})
      add(dim, dim, {F::causal, feature});
    add(dim, dim, {F::window, F::lengths, F::soft_cap, F::sink, F::deterministic});
    add(dim, dim, {F::window, F::lengths, F::alibi, F::log2, F::deterministic});
    add(dim, dim, {F::window, F::lengths, F::alibi, F::philox, F::deterministic});
    for (const auto& tiled : tiled_features()) add(dim, dim, tiled);
    add(dim, dim, {F::causal}, DataType::f16);
  }
  for (int dim : {64, 128, 192, 256}) {
    for (const auto& features : {std::vector<F>{F::factor},
                                 {F::window, F::lengths, F::factor, F::sink, F::deterministic},
                                 {F::causal, F::factor, F::philox}})
      add(dim, dim, features, DataType::f16);
  }
  add(64, 64, {F::wide_bias});
  add(64, 64, {F::causal, F::wide_bias, F::philox});
  add(64, 64, {F::window, F::lengths, F::wide_bias, F::log2, F::sink, F::deterministic});
  for (const auto& features : features_with_statistics()) {
    for (int dim : {64, 128, 192}) add(dim, dim, features);
    for (int dim : {64, 128}) add(dim, dim, features, DataType::f32);
  }
  // A gradient of log-sum-exps changes the kernel that prepares the rows.
  for (const auto& [type, dim] : {std::pair{DataType::bf16, 64}, {DataType::f16, 192}}) {
    add(dim, dim, {F::causal, F::stats_gradient}, type);
    add(dim, dim, {F::lengths, F::alibi, F::sink, F::statistics, F::stats_gradient}, type);
  }
  add(64, 64, {F::wide_bias, F::statistics});
  add(256, 256, {F::bias, F::statistics});
  add(256, 256, {F::causal, F::bias, F::philox, F::statistics});
  add(128, 128, {F::causal, F::bias, F::philox, F::statistics}, DataType::f32);
  // f32 of wide heads: up to 256 columns by gradient, with what scores have, above by columns.
  for (auto [qk, v] :
       {std::pair{160, 160}, {192, 128}, {192, 192}, {136, 72}, {256, 256}, {72, 256}}) {
    for (const auto& features : {std::vector<F>{},
                                 {F::causal},
                                 {F::window, F::lengths, F::deterministic},
                                 {F::causal, F::statistics},
                                 {F::causal, F::soft_cap},
                                 {F::causal, F::alibi},
                                 {F::causal, F::log2},
                                 {F::causal, F::sink},
                                 {F::causal, F::philox},
                                 {F::window, F::lengths, F::soft_cap, F::sink, F::deterministic},
                                 {F::window, F::lengths, F::alibi, F::log2, F::deterministic},
                                 {F::window, F::lengths, F::factor, F::sink, F::deterministic},
                                 {F::ragged, F::causal}})
      add(qk, v, features, DataType::f32);
    if (std::max(qk, v) > 192) continue;
    for (const auto& features : {std::vector<F>{F::threefry},
                                 {F::bias},
                                 {F::causal, F::bias, F::philox, F::statistics},
                                 {F::causal, F::boolean_mask}})
      add(qk, v, features, DataType::f32);
  }
  for (auto [qk, v] : {std::pair{320, 320}, {512, 512}, {264, 8}, {40, 512}, {456, 248}}) {
    for (const auto& features : {std::vector<F>{},
                                 {F::causal},
                                 {F::window, F::lengths},
                                 {F::causal, F::statistics},
                                 {F::causal, F::log2},
                                 {F::causal, F::sink},
                                 {F::ragged, F::causal}})
      add(qk, v, features, DataType::f32);
  }
  for (int dim : {8, 40, 72, 80, 96, 104}) add(dim, dim, {F::causal});
  for (auto [qk, v] : {std::pair{128, 64}, {64, 128}, {72, 40}}) add(qk, v, {F::causal});
  for (auto [qk, v] : {std::pair{64, 64}, {128, 128}, {72, 40}, {192, 128}, {256, 256}}) {
    for (F feature : {F::causal, F::soft_cap, F::philox, F::lengths, F::deterministic})
      add(qk, v, {F::wide_results, feature});
  }
  for (int dim : {192, 256}) {
    for (const auto& mask : {std::vector<F>{}, {F::causal}, {F::window}}) add(dim, dim, mask);
    for (const auto& mask : {std::vector<F>{}, {F::causal}}) {
      std::vector<F> ordered = mask;
      ordered.push_back(F::deterministic);
      add(dim, dim, ordered);
    }
    for (F feature : {F::soft_cap, F::alibi, F::log2, F::sink, F::lengths, F::philox})
      add(dim, dim, {F::causal, feature});
    add(dim, dim, {F::window, F::lengths, F::soft_cap, F::sink, F::deterministic});
    add(dim, dim, {F::window, F::lengths, F::alibi, F::philox, F::deterministic});
    // Above 192 loads by the cell have spilled up to 72 bytes; the general kernels are slower.
    if (dim == 192) {
      for (const auto& tiled : tiled_features()) add(dim, dim, tiled);
    } else {
      add(dim, dim, {F::bias});
      add(dim, dim, {F::causal, F::bias, F::philox});
      add(dim, dim, {F::window, F::lengths, F::bias, F::log2, F::sink});
    }
    add(dim, dim, {F::causal}, DataType::f16);
  }
  add(192, 192, {F::causal, F::threefry});
  // Columns shared out to two blocks.
  for (auto [qk, v] : {std::pair{512, 512}, {320, 320}, {264, 8}, {40, 512}, {456, 248}}) {
    for (const auto& features : {std::vector<F>{},
                                 {F::window},
                                 {F::deterministic},
                                 {F::causal, F::deterministic},
                                 {F::causal, F::soft_cap},
                                 {F::causal, F::alibi},
                                 {F::causal, F::log2},
                                 {F::causal, F::sink},
                                 {F::causal, F::lengths},
                                 {F::causal, F::philox},
                                 {F::causal, F::bias},
                                 {F::causal, F::statistics},
                                 {F::causal, F::stats_gradient},
                                 {F::causal, F::wide_results},
                                 {F::ragged, F::causal},
                                 {F::window, F::lengths, F::soft_cap, F::sink, F::deterministic},
                                 {F::window, F::lengths, F::alibi, F::philox, F::deterministic},
                                 {F::causal, F::bias, F::philox, F::statistics},
                                 {F::window, F::lengths, F::bias, F::log2, F::sink}})
      add(qk, v, features);
    add(qk, v, {F::causal}, DataType::f16);
  }
  add(320, 320, {F::causal, F::boolean_mask});
  const auto add_function = [&](int dim, ScoreOp function, bool of_distance,
                                DataType dtype = DataType::bf16) {
    all.push_back({dtype, dim, dim, {F::causal}, "sm_90a", 512, function, of_distance});
  };
  for (ScoreOp function : long_functions()) {
    add_function(128, function, false, DataType::f32);
    // The general kernels take what does not compile in two seconds, or spills.
    if (is_of_angles(function)) continue;
    if (function == ScoreOp::modulo) continue;
    add_function(64, function, false);
    if (has_light_derivative(function))
      for (int dim : {128, 256}) add_function(dim, function, false);
  }
  for (ScoreOp function : {ScoreOp::logarithm, ScoreOp::power, ScoreOp::modulo})
    for (int dim : {64, 128, 256}) add_function(dim, function, true);
  for (auto [qk, v] : {std::pair{64, 256}, {136, 200}, {136, 72}, {160, 64}})
    add(qk, v, {F::causal});
  // Transposed sums, of what is as plain as they take.
  for (const auto& features : {std::vector<F>{},
                               {F::causal},
                               {F::window},
                               {F::lengths},
                               {F::causal, F::log2},
                               {F::causal, F::sink},
                               {F::causal, F::lengths},
                               {F::window, F::lengths, F::log2, F::sink},
                               {F::causal, F::stats_gradient}}) {
    add(192, 128, features);
    add(192, 128, features, DataType::f16);
  }
  add(192, 128, {F::causal, F::deterministic});
  add(192, 128, {F::causal, F::statistics});
  for (auto [qk, v] : {std::pair{64, 64}, {8, 8}, {40, 56}, {128, 128}, {72, 40}, {64, 96}}) {
    for (const auto& mask : {std::vector<F>{}, {F::causal}, {F::window}}) {
      add(qk, v, mask, DataType::f32);
      std::vector<F> ordered = mask;
      ordered.push_back(F::deterministic);
      ordered.push_back(F::sink);
      add(qk, v, ordered, DataType::f32);
    }
    for (F feature : {F::log2, F::soft_cap, F::alibi, F::philox, F::threefry, F::lengths})
      add(qk, v, {F::causal, feature}, DataType::f32);
    add(qk, v, {F::window, F::ragged, F::sink, F::deterministic}, DataType::f32);
    add(qk, v, {F::causal, F::boolean_mask}, DataType::f32);
    add(qk, v, {F::causal, F::bias, F::philox}, DataType::f32);
    add(qk, v, {F::window, F::lengths, F::boolean_mask, F::sink, F::deterministic}, DataType::f32);
    add(qk, v, {F::window, F::ragged, F::wide_bias, F::threefry, F::log2, F::deterministic},
        DataType::f32);
    for (F lengths : {F::lengths, F::ragged})
      add(qk, v, {F::window, lengths, F::alibi, F::philox, F::log2, F::deterministic, F::sink},
          DataType::f32);
  }
  return all;
}

INSTANTIATE_TEST_SUITE_P(Matrix, HopperBackward, testing::ValuesIn(cases()),
                         [](const testing::TestParamInfo<Case>& info) {
                           return title(info.param);
                         });

/// The gradient of a bias from the dS of a block, or from those of a cluster of `entries`.
struct TileGradient {
  Case of;
  int64_t entries;
};

class HopperBackwardTileGradient : public testing::TestWithParam<TileGradient> {};

TEST_P(HopperBackwardTileGradient, Compiles) {
  const auto& [of, entries] = GetParam();
  problem::AttentionBackwardProblem problem = backward_of(of);
  problem::AttentionSizes& sizes = problem.sizes;
  const problem::LoadGradient& wanted = problem.structure.load_gradients.front();
  if (entries == 1) {
    for (problem::OperandId id : {wanted.load, wanted.gradient}) {
      problem::OperandLayout& layout = sizes.layout(id);
      layout.dims[0] = sizes.batch;
      layout.strides[0] = layout.dims[1] * layout.strides[1];
    }
  } else {
    for (problem::OperandLayout& layout : sizes.layouts)
      if (layout.dims[0] == sizes.batch) layout.dims[0] = entries;
    sizes.batch = entries;
  }
  const Result<BackwardSm90Config> config = configure_backward_sm90(problem);
  ASSERT_TRUE(config.is_ok()) << config.status().message();
  EXPECT_TRUE(config->tiled_gradient);
  EXPECT_EQ(config->cluster, entries);
  expect_clean(lower_backward_sm90(problem, *target_named(of.architecture)), of.architecture,
               {{kBackwardSm90Names[1], {"HGMMA", "UTMALDG", "UTMASTG", "UBLKRED"}}});
}

std::vector<TileGradient> tile_gradients() {
  using F = Feature;
  std::vector<TileGradient> all;
  const auto add = [&](int qk, int v, const std::vector<F>& features, int64_t entries,
                       DataType dtype = DataType::bf16) {
    all.push_back({{dtype, qk, v, features, "sm_90a", 512}, entries});
  };
  for (int64_t entries : {1, 2, 4, 8})
    for (int dim : {64, 128}) add(dim, dim, {F::bias}, entries);
  for (int64_t entries : {1, 8}) {
    for (int dim : {64, 128}) {
      add(dim, dim, {F::window, F::bias, F::log2, F::sink, F::deterministic}, entries);
      add(dim, dim, {F::causal, F::bias, F::statistics}, entries);
    }
    add(64, 64, {F::causal, F::bias, F::philox}, entries);
    add(72, 40, {F::causal, F::bias, F::deterministic}, entries, DataType::f16);
    add(64, 128, {F::causal, F::bias, F::stats_gradient}, entries);
  }
  return all;
}

INSTANTIATE_TEST_SUITE_P(Matrix, HopperBackwardTileGradient, testing::ValuesIn(tile_gradients()),
                         [](const testing::TestParamInfo<TileGradient>& info) {
                           return fmt::format("{}_of_{}", title(info.param.of), info.param.entries);
                         });

}  // namespace
}  // namespace heddle::engine::cuda
