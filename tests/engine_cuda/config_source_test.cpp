// What a generated source says of a configuration, and what is said of it to people.
#include "engine/cuda/config_source.h"

#include <gtest/gtest.h>

#include "kernels/cases.h"
#include "kernels/lowered.h"
#include "kernels/streaming_cases.h"

namespace heddle::engine::cuda {
namespace {

/// "name: dtype head_dim features" of a problem's kernel, as the cache lists it.
std::string said(const problem::Problem& problem, const std::string& architecture,
                 const std::string& name) {
  const auto units = units_of(problem, architecture);
  if (!units) return units.status().message();
  for (const KernelUnit& unit : *units) {
    if (unit.name != name) continue;
    const UnitSummary& summary = unit.made_for;
    return summary.dtype + " | " + summary.head_dim + " | " + summary.features;
  }
  return "has no such kernel";
}

std::string forward(const Case& c) {
  return said(forward_of(c), c.architecture, "attention_forward");
}

TEST(UnitSummary, SaysTypeHeadDimsAndFeaturesOfForwards) {
  EXPECT_EQ(forward({}), "bf16 | 64 | ");
  EXPECT_EQ(forward({.dtype = DataType::f16, .qk_dim = 192, .v_dim = 128}), "f16 | 192/128 | ");
  EXPECT_EQ(forward({.dtype = DataType::f32}), "f32 | 64 | ");
  EXPECT_EQ(forward({.features = {Feature::paged, Feature::block_mask, Feature::philox}}),
            "bf16 | 64 | paged K, paged V, block mask, dropout philox");
  const auto hopper = [](std::vector<Feature> features, DataType dtype = DataType::bf16) {
    return forward({.dtype = dtype, .features = std::move(features), .architecture = "sm_90a"});
  };
  EXPECT_EQ(hopper({}), "bf16 | 64 | ");
  EXPECT_EQ(hopper({Feature::causal}, DataType::f32), "f32 | 64 | causal");
  EXPECT_EQ(hopper({Feature::soft_cap, Feature::sink}), "bf16 | 64 | sink, score expression");
  EXPECT_EQ(hopper({Feature::lengths, Feature::statistics, Feature::log2}),
            "bf16 | 64 | lengths, row maximum, base 2");
  EXPECT_EQ(hopper({Feature::window}), "bf16 | 64 | causal, window");
  EXPECT_EQ(hopper({Feature::causal, Feature::rope_halves}), "bf16 | 64 | causal, rope 64 halves");
}

TEST(UnitSummary, OfBackwards) {
  const auto backward = [](const Case& c, const char* name) {
    return said(backward_of(c), c.architecture, std::string("attention_backward_") + name);
  };
  EXPECT_EQ(backward({}, "keys"), "bf16 | 64 | dK, dV");
  EXPECT_EQ(backward({.features = {Feature::soft_cap}}, "queries"), "bf16 | 64 | score expression");
  for (const char* name : {"main", "prepare", "finish"}) {
    EXPECT_EQ(backward({.qk_dim = 128,
                        .v_dim = 128,
                        .features = {Feature::causal, Feature::deterministic},
                        .architecture = "sm_90a"},
                       name),
              "bf16 | 128 | causal, deterministic");
  }
}

TEST(UnitSummary, OfStreamingKernels) {
  EXPECT_EQ(said(norm_of({.weight = DataType::f32, .bias = true}), "sm_90a", "rms_norm"),
            "bf16 |  | weight f32, bias");
  EXPECT_EQ(said(norm_backward_of({}), "sm_80", "rms_norm_backward"), "bf16 |  | dX, dWeight");
  EXPECT_EQ(said(norm_of({.centred = true}), "sm_90a", "layer_norm"), "bf16 |  | ");
  EXPECT_EQ(said(norm_backward_of({.bias = true, .centred = true}), "sm_80", "layer_norm_backward"),
            "bf16 |  | dX, dWeight, dBias");
  EXPECT_EQ(
      said(rope_of({.y = DataType::f32, .interleaved = true, .tables = true, .inverse = true}),
           "sm_80", "rope"),
      "bf16 |  | y f32, interleaved, tables, backward");
}

TEST(ConfigSource, HasEachFieldAsAValueAndByTheNameThatKernelsKnow) {
  streaming::RopeConfig config;
  config.y = Element::f32;
  config.pairs = 4;
  config.positions_per_row = true;
  EXPECT_EQ(config_source<streaming::RopeConfig>(config),
            "struct Config {\n"
            "  static constexpr RopeConfig kValues{.x = heddle::Element::bf16, "
            ".y = heddle::Element::f32, .number = heddle::Element::f32, .pairs = 4, "
            ".aligned = true, .interleaved = false, .tables = false, .positions = false, "
            ".positions_per_row = true, .ragged = false, .inverse = false, .rounded = false};\n"
            "  using X = bf16;\n"
            "  using Y = float;\n"
            "  using Number = float;\n"
            "  static constexpr auto kPairs = 4;\n"
            "  static constexpr auto kAligned = true;\n"
            "  static constexpr auto kInterleaved = false;\n"
            "  static constexpr auto kTables = false;\n"
            "  static constexpr auto kPositions = false;\n"
            "  static constexpr auto kPositionsPerRow = true;\n"
            "  static constexpr auto kRagged = false;\n"
            "  static constexpr auto kInverse = false;\n"
            "  static constexpr auto kRounded = false;\n"
            "};\n");
}

TEST(ConfigSource, NamesFieldsAsKernelsDo) {
  EXPECT_EQ(device_name("qk_dim", false), "kQkDim");
  EXPECT_EQ(device_name("d_o_stages", false), "kDOStages");
  EXPECT_EQ(device_name("tiled_element", true), "TiledElement");
}

}  // namespace
}  // namespace heddle::engine::cuda
