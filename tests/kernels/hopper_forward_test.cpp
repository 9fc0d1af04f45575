// The Hopper attention forward: every choice of tiles with every kind of mask, and every feature
// that changes its code, alone and piled up.
#include <gtest/gtest.h>

#include "engine/cuda/attention_forward_sm90.h"
#include "kernels/cases.h"
#include "kernels/compiled.h"

namespace heddle::engine::cuda {
namespace {

class HopperForward : public testing::TestWithParam<Case> {};

TEST_P(HopperForward, Compiles) {
  const std::string& architecture = GetParam().architecture;
  const problem::AttentionProblem problem = forward_of(GetParam());
  Instructed forward{"attention_forward", {"HGMMA", "UTMALDG"}};
  // f32 leaves from registers, and what is wider than a consumer has.
  if (GetParam().dtype != DataType::f32 && !GetParam().has(Feature::wide_results) &&
      GetParam().v_dim <= 256)
    forward.instructions.push_back("UTMASTG");
  expect_clean(lower_forward_sm90(problem, *target_named(architecture)), architecture, {forward});
}

std::vector<Case> cases() {
  std::vector<Case> all;
  const auto add = [&](int qk, int v, std::vector<Feature> features, int64_t length = 512,
                       DataType dtype = DataType::bf16) {
    all.push_back({dtype, qk, v, std::move(features), "sm_90a", length});
  };
  // Three consumers at d 128, and causal at d 192/128; beside a score at d 64 and 128.
  constexpr int64_t kLong = 16384;
  using F = Feature;
  for (auto [qk, v] : {std::pair{64, 64}, {128, 128}, {192, 128}, {192, 192}, {256, 256}}) {
    for (const auto& mask : {std::vector<F>{}, {F::causal}, {F::window}}) add(qk, v, mask);
    for (F feature : {F::soft_cap, F::alibi, F::bias, F::philox, F::threefry, F::log2,
                      F::negative_scale, F::sink, F::statistics, F::lengths, F::ragged})
      add(qk, v, {F::causal, feature});
    for (F rope : {F::rope_halves, F::rope_interleaved, F::rope_leading}) {
      add(qk, v, {F::causal, rope});
      for (F feature : {F::soft_cap, F::bias, F::philox, F::lengths})
        add(qk, v, {F::causal, rope, feature});
    }
    add(qk, v, {F::window, F::lengths, F::soft_cap, F::philox, F::sink, F::statistics});
    for (F feature : {F::causal, F::soft_cap, F::bias, F::philox, F::ragged, F::rope_halves})
      add(qk, v, {F::wide_results, feature});
    // Above 128 the general kernel takes a bias with dropout, above 192 with lengths.
    if (qk <= 192) add(qk, v, {F::window, F::ragged, F::bias, F::sink, F::log2});
    add(qk, v, {F::window, F::bias, F::sink, F::log2, F::statistics});
    if (qk <= 192) add(qk, v, {F::boolean_mask});
    if (qk <= 128) add(qk, v, {F::window, F::ragged, F::boolean_mask, F::philox, F::sink});
    if (qk <= 128) add(qk, v, {F::causal, F::wide_bias});
    add(qk, v, {F::causal, F::row_bias});
    if (qk <= 128) add(qk, v, {F::window, F::ragged, F::row_bias, F::philox, F::sink, F::log2});
    if (qk <= 128) add(qk, v, {F::window, F::ragged, F::wide_bias, F::philox, F::sink, F::log2});
    if (qk <= 128) add(qk, v, {F::window, F::ragged, F::bias, F::threefry, F::sink, F::log2});
    add(qk, v, {F::causal}, 512, DataType::f16);
  }
  // O in parts.
  for (auto [qk, v] : {std::pair{264, 264}, {320, 320}, {512, 512}, {576, 512}}) {
    for (const auto& mask : {std::vector<F>{}, {F::causal}, {F::window}}) add(qk, v, mask);
    if (qk < 512) continue;
    for (F feature : {F::soft_cap, F::alibi, F::bias, F::philox, F::threefry, F::log2,
                      F::negative_scale, F::sink, F::statistics, F::lengths, F::ragged,
                      F::wide_results, F::row_bias, F::boolean_mask})
      add(qk, v, {F::causal, feature});
    add(qk, v, {F::window, F::lengths, F::soft_cap, F::philox, F::sink, F::statistics});
    add(qk, v, {F::window, F::bias, F::sink, F::log2, F::statistics});
  }
  add(64, 512, {F::causal}, 512, DataType::f16);
  for (problem::ScoreOp function : long_functions()) {
    for (int dim : {128, 256})
      all.push_back({DataType::bf16, dim, dim, {F::causal}, "sm_90a", 512, function});
    all.push_back({DataType::f32, 128, 128, {F::causal}, "sm_90a", 512, function});
  }
  for (auto function :
       {problem::ScoreOp::logarithm, problem::ScoreOp::power, problem::ScoreOp::modulo})
    all.push_back({DataType::bf16, 128, 128, {F::causal}, "sm_90a", 512, function, true});
  for (const auto& features : {std::vector<F>{},
                               {F::causal},
                               {F::causal, F::rope_halves},
                               {F::causal, F::rope_interleaved},
                               {F::causal, F::rope_leading},
                               {F::sink},
                               {F::statistics},
                               {F::log2},
                               {F::causal, F::ragged},
                               {F::causal, F::wide_results},
                               {F::causal, F::wide_results, F::rope_halves}}) {
    add(128, 128, features, kLong);
    add(192, 128, features, kLong);
  }
  for (F feature : {F::sink, F::statistics, F::log2, F::lengths})
    add(192, 128, {F::causal, feature}, kLong);
  add(64, 64, {F::causal}, kLong);  // two consumers only where causal rows are short
  for (int dim : {64, 128}) {
    for (F score : {F::soft_cap, F::alibi, F::bias, F::boolean_mask}) {
      add(dim, dim, {score}, kLong);
      for (F feature :
           {F::causal, F::statistics, F::sink, F::log2, F::negative_scale, F::wide_results})
        add(dim, dim, {score, feature}, kLong);
    }
    add(dim, dim, {F::soft_cap, F::bias, F::sink, F::statistics}, kLong);
    add(dim, dim, {F::soft_cap, F::boolean_mask, F::sink, F::statistics}, kLong);
    add(dim, dim, {F::causal, F::alibi, F::sink, F::statistics}, kLong);
    for (problem::ScoreOp function : long_functions())
      all.push_back({DataType::bf16, dim, dim, {F::causal}, "sm_90a", kLong, function});
    for (auto function :
         {problem::ScoreOp::logarithm, problem::ScoreOp::power, problem::ScoreOp::modulo})
      all.push_back({DataType::bf16, dim, dim, {F::causal}, "sm_90a", kLong, function, true});
  }
  // One consumer, by three blocks or two on a processor, and tiles that fit few keys.
  for (auto [dim, length] :
       {std::pair{32, 77}, {64, 64}, {64, 272}, {128, 64}, {128, 197}, {128, 272}}) {
    for (const auto& features : {std::vector<F>{}, {F::causal}, {F::lengths}, {F::wide_results}})
      add(dim, dim, features, length);
    add(dim, dim, {F::window, F::lengths, F::sink, F::statistics, F::log2}, length);
    add(dim, dim, {F::window, F::ragged, F::sink, F::wide_results}, length);
    add(dim, dim, {F::causal, F::soft_cap, F::bias}, length);
  }
  for (int dim : {8, 40, 72, 96, 104, 136, 200, 248}) add(dim, dim, {F::causal});
  for (auto [qk, v] : {std::pair{128, 64}, {64, 128}, {72, 40}}) add(qk, v, {F::causal});
  for (auto [qk, v] : {std::pair{64, 64}, {128, 128}, {8, 8}, {72, 40}}) {
    for (const auto& mask : {std::vector<F>{}, {F::causal}, {F::window}})
      add(qk, v, mask, 512, DataType::f32);
    for (F feature : {F::soft_cap, F::alibi, F::bias, F::philox, F::threefry, F::log2,
                      F::negative_scale, F::sink, F::statistics, F::lengths, F::ragged})
      add(qk, v, {F::causal, feature}, 512, DataType::f32);
    for (F lengths : {F::lengths, F::ragged}) {
      add(qk, v, {F::window, lengths, F::soft_cap, F::philox, F::sink, F::statistics}, 512,
          DataType::f32);
      add(qk, v, {F::window, lengths, F::bias, F::sink, F::log2}, 512, DataType::f32);
      if (qk <= 64)
        add(qk, v, {F::window, lengths, F::bias, F::threefry, F::sink, F::log2}, 512,
            DataType::f32);
    }
  }
  // Rows of a consumer's own, shared columns, and those of two blocks; where nothing but O is
  // wanted, and with statistics where the backward takes them.
  for (auto [qk, v] :
       {std::pair{192, 128}, {256, 128}, {160, 160}, {256, 256}, {320, 320}, {512, 512}}) {
    const auto add_alone = [&, qk = qk, v = v](std::vector<F> features) {
      features.push_back(F::output_alone);
      add(qk, v, std::move(features), 512, DataType::f32);
    };
    for (const auto& mask : {std::vector<F>{}, {F::causal}, {F::window}}) add_alone(mask);
    for (F feature : {F::soft_cap, F::alibi, F::bias, F::boolean_mask, F::philox, F::threefry,
                      F::log2, F::negative_scale, F::sink, F::lengths, F::ragged})
      add_alone({F::causal, feature});
    for (F lengths : {F::lengths, F::ragged}) {
      add_alone({F::window, lengths, F::soft_cap, F::philox, F::sink});
      if (qk <= 192) add_alone({F::window, lengths, F::bias, F::sink, F::log2});
    }
    for (const auto& features : {std::vector<F>{F::causal},
                                 {F::causal, F::statistics},
                                 {F::window, F::lengths, F::sink, F::statistics},
                                 {F::ragged, F::log2}})
      add(qk, v, features, 512, DataType::f32);
    if (qk > 256) continue;
    for (const auto& features : {std::vector<F>{F::causal, F::soft_cap, F::statistics},
                                 {F::causal, F::alibi, F::philox},
                                 {F::window, F::lengths, F::soft_cap, F::philox, F::sink}})
      add(qk, v, features, 512, DataType::f32);
    if (qk <= 192) add(qk, v, {F::causal, F::bias, F::statistics}, 512, DataType::f32);
  }
  return all;
}

INSTANTIATE_TEST_SUITE_P(Matrix, HopperForward, testing::ValuesIn(cases()),
                         [](const testing::TestParamInfo<Case>& info) {
                           return title(info.param);
                         });

}  // namespace
}  // namespace heddle::engine::cuda
