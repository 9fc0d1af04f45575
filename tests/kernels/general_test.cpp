// The general kernels over head dims, types and features, for sm_80 and for sm_90a.
#include <gtest/gtest.h>

#include "engine/cuda/attention_backward_sm80.h"
#include "engine/cuda/attention_forward_sm80.h"
#include "kernels/cases.h"
#include "kernels/compiled.h"

namespace heddle::engine::cuda {
namespace {

class GeneralKernels : public testing::TestWithParam<Case> {};
/// Of what only the forward pass reads or writes.
class ForwardKernels : public testing::TestWithParam<Case> {};

void expect_clean_forward(const Case& c) {
  expect_clean(lower_forward_sm80(forward_of(c), *target_named(c.architecture)), c.architecture);
}

TEST_P(GeneralKernels, Forward) { expect_clean_forward(GetParam()); }
TEST_P(ForwardKernels, Forward) { expect_clean_forward(GetParam()); }

TEST_P(GeneralKernels, Backward) {
  const std::string& architecture = GetParam().architecture;
  expect_clean(lower_backward_sm80(backward_of(GetParam()), *target_named(architecture)),
               architecture);
}

std::vector<Case> cases() {
  const std::vector<std::vector<Feature>> features = {
      {Feature::sink},       {Feature::causal},    {Feature::soft_cap}, {Feature::bias},
      {Feature::alibi},      {Feature::philox},    {Feature::threefry}, {Feature::dropout_mask},
      {Feature::block_mask}, {Feature::unaligned}, {Feature::log2},     {Feature::wide_results}};
  std::vector<Case> all;
  for (const char* architecture : {"sm_80", "sm_90a"}) {
    for (const auto& feature : features) {
      for (int dim : {64, 128, 256}) {
        for (DataType type : {DataType::bf16, DataType::f32})
          all.push_back({type, dim, dim, feature, architecture});
      }
    }
    for (DataType type : {DataType::bf16, DataType::f32}) {
      all.push_back(
          {type, 128, 128, {Feature::bias, Feature::sink, Feature::statistics}, architecture});
      for (Feature feature : {Feature::sink, Feature::statistics})
        all.push_back({type, 64, 64, {feature, Feature::stats_gradient}, architecture});
      for (int dim : {1, 36, 100, 250})  // read by elements
        all.push_back({type, dim, dim, {Feature::causal, Feature::unaligned}, architecture});
      for (int dim : {8, 72, 96, 192})
        all.push_back({type, dim, dim, {Feature::causal}, architecture});
      all.push_back({type, 192, 128, {Feature::causal}, architecture});
    }
    all.push_back({DataType::f16, 128, 128, {Feature::causal}, architecture});
    // Wider than the sums of a warp.
    for (DataType type : {DataType::bf16, DataType::f32}) {
      for (const auto& feature : features) {
        all.push_back({type, 512, 512, feature, architecture});
      }
      all.push_back({type, 320, 320, {Feature::causal}, architecture});
      all.push_back({type, 576, 512, {Feature::causal}, architecture});
      all.push_back({type, 64, 512, {Feature::causal}, architecture});
      all.push_back({type, 576, 64, {Feature::causal, Feature::bias}, architecture});
      all.push_back({type, 300, 270, {Feature::causal, Feature::unaligned}, architecture});
    }
    all.push_back({DataType::f16, 512, 512, {Feature::causal}, architecture});
    for (problem::ScoreOp function : long_functions()) {
      for (DataType type : {DataType::bf16, DataType::f32})
        all.push_back({type, 128, 128, {Feature::causal}, architecture, 512, function});
    }
  }
  return all;
}

std::vector<Case> forward_cases() {
  std::vector<Case> all;
  for (const char* architecture : {"sm_80", "sm_90a"}) {
    for (int dim : {64, 128, 256, 512}) {
      for (DataType type : {DataType::bf16, DataType::f32})
        for (Feature feature : {Feature::paged, Feature::ring, Feature::scores, Feature::weights})
          all.push_back({type, dim, dim, {feature}, architecture});
    }
    for (DataType type : {DataType::bf16, DataType::f32}) {
      all.push_back(
          {type, 100, 36, {Feature::scores, Feature::bias, Feature::unaligned}, architecture});
      for (const auto& features :
           {std::vector{Feature::causal, Feature::sink}, {Feature::block_mask, Feature::log2}}) {
        all.push_back({type, 64, 64, features, architecture});
        all.back().features.push_back(Feature::weights);
      }
    }
  }
  return all;
}

INSTANTIATE_TEST_SUITE_P(Matrix, ForwardKernels, testing::ValuesIn(forward_cases()),
                         [](const testing::TestParamInfo<Case>& info) {
                           return title(info.param);
                         });
INSTANTIATE_TEST_SUITE_P(Matrix, GeneralKernels, testing::ValuesIn(cases()),
                         [](const testing::TestParamInfo<Case>& info) {
                           return title(info.param);
                         });

}  // namespace
}  // namespace heddle::engine::cuda
