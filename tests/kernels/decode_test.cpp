// The decode kernel over head dims, types and features, for sm_80 and for sm_90a.
#include <gtest/gtest.h>

#include <algorithm>

#include "engine/cuda/attention_decode.h"
#include "kernels/cases.h"
#include "kernels/compiled.h"

namespace heddle::engine::cuda {
namespace {

struct Few {
  Case keys;
  int64_t rows;  ///< of queries: up to 8 are columns of products, up to 16 one tile
};

class DecodeKernels : public testing::TestWithParam<Few> {};

TEST_P(DecodeKernels, Forward) {
  problem::AttentionProblem problem = forward_of(GetParam().keys);
  problem.sizes.q_length = GetParam().rows;
  const std::string& architecture = GetParam().keys.architecture;
  const Target target = *target_named(architecture);
  const auto config = configure_decode(problem, target);
  ASSERT_TRUE(config.is_ok()) << config.status().message();
  expect_clean(lower_decode(problem, target), architecture,
               {{"attention_decode", {config->warp_groups ? "HGMMA" : "HMMA", "LDGSTS"}}});
}

std::vector<Few> cases() {
  const std::vector<std::vector<Feature>> features = {{},
                                                      {Feature::causal, Feature::sink},
                                                      {Feature::soft_cap},
                                                      {Feature::bias, Feature::statistics},
                                                      {Feature::alibi},
                                                      {Feature::paged, Feature::causal},
                                                      {Feature::ragged, Feature::causal},
                                                      {Feature::log2},
                                                      {Feature::wide_results},
                                                      {Feature::i8_codes},
                                                      {Feature::i4_codes},
                                                      {Feature::f8_codes, Feature::causal},
                                                      {Feature::i8_codes, Feature::statistics},
                                                      {Feature::i4_codes, Feature::statistics},
                                                      {Feature::ring, Feature::causal}};
  std::vector<Few> all;
  for (const char* architecture : {"sm_80", "sm_90a"}) {
    for (int64_t rows : {1, 12, 24}) {
      for (const auto& feature : features)
        for (int dim : {64, 128, 256})
          all.push_back({{DataType::bf16, dim, dim, feature, architecture}, rows});
      for (int dim : {8, 72, 96, 192})
        all.push_back({{DataType::f16, dim, dim, {Feature::causal}, architecture}, rows});
      all.push_back({{DataType::bf16, 192, 128, {Feature::causal}, architecture}, rows});
      // Wider than a warp's sums.
      for (const auto& feature : features) {
        if (std::ranges::any_of(feature, [](Feature f) {
              return f == Feature::i8_codes || f == Feature::i4_codes || f == Feature::f8_codes;
            }))
          continue;
        all.push_back({{DataType::bf16, 576, 512, feature, architecture}, rows});
      }
      for (int dim : {264, 320, 512})
        all.push_back({{DataType::f16, dim, dim, {Feature::causal}, architecture}, rows});
      all.push_back({{DataType::bf16, 64, 512, {Feature::causal}, architecture}, rows});
      all.push_back({{DataType::bf16, 576, 64, {Feature::causal}, architecture}, rows});
    }
    for (const auto& feature : {std::vector<Feature>{}, {Feature::causal, Feature::soft_cap}})
      all.push_back({{DataType::bf16, 576, 512, feature, architecture}, 64});
    // More rows than a block takes: twins of a cluster, where values may lie in keys.
    for (const auto& feature :
         std::vector<std::vector<Feature>>{{},
                                           {Feature::causal, Feature::sink},
                                           {Feature::causal, Feature::lengths},
                                           {Feature::paged, Feature::causal},
                                           {Feature::soft_cap},
                                           {Feature::bias, Feature::statistics},
                                           {Feature::wide_results},
                                           {Feature::ring, Feature::causal}})
      all.push_back({{DataType::bf16, 576, 512, feature, architecture}, 128});
    for (int dim : {320, 512})
      all.push_back(
          {{DataType::f16, dim, dim, {Feature::causal, Feature::lengths}, architecture}, 128});
  }
  return all;
}

INSTANTIATE_TEST_SUITE_P(Matrix, DecodeKernels, testing::ValuesIn(cases()),
                         [](const testing::TestParamInfo<Few>& info) {
                           return title(info.param.keys) + "_of_" + std::to_string(info.param.rows);
                         });

}  // namespace
}  // namespace heddle::engine::cuda
