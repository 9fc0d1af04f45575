#include "engine/cuda/kernel_units.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "kernels/cases.h"
#include "kernels/streaming_cases.h"

namespace heddle::engine::cuda {
namespace {

TEST(Architecture, IsOneThatDevicesRun) {
  for (const char* good : {"sm_80", "sm_86", "sm_90a", "sm_100", "sm_120"})
    EXPECT_TRUE(check_architecture(good).is_ok()) << good;
  for (const char* bad : {"", "sm_", "sm_75", "sm_90", "compute_90a", "sm_80a", "sm_99999999999"})
    EXPECT_FALSE(check_architecture(bad).is_ok()) << bad;
  EXPECT_EQ(check_architecture("sm_90").message(),
            "The architecture is 'sm_90', but devices of compute capability 9.0 run sm_90a.");
}

TEST(CommonKernels, AreDistinctAndCoverCommonProblems) {
  for (const char* architecture : {"sm_80", "sm_90a"}) {
    const std::vector<KernelUnit> common = common_kernel_units(architecture);
    std::set<std::string> sources;
    for (const KernelUnit& unit : common) sources.insert(unit.source);
    EXPECT_EQ(sources.size(), common.size());
    for (int dim : {64, 128, 256}) {
      for (int64_t length : {777, 40000}) {
        const Case c{.qk_dim = dim, .v_dim = dim, .features = {Feature::causal}, .length = length};
        for (const problem::Problem& problem :
             {problem::Problem(forward_of(c)), problem::Problem(backward_of(c))}) {
          const auto units = kernel_units(problem, architecture);
          ASSERT_TRUE(units.is_ok()) << units.status().message();
          ASSERT_FALSE(units->empty());
          for (const KernelUnit& unit : *units)
            EXPECT_TRUE(sources.contains(unit.source)) << title(c) << " " << unit.name;
        }
      }
    }
  }
}

TEST(KernelUnits, AKeepMaskThatIsWrittenHasAKernelOfItsOwn) {
  problem::AttentionProblem problem =
      forward_of({.features = {Feature::philox}, .architecture = "sm_90a"});
  ASSERT_EQ(kernel_units(problem, "sm_90a")->size(), 1u);
  problem.structure.dropout.dump = problem.structure.q;
  const auto units = kernel_units(problem, "sm_90a");
  ASSERT_EQ(units->size(), 2u);
  EXPECT_EQ(units->back().name, "attention_dropout_dump");
}

TEST(KernelUnits, OfABackwardAreHoppersWhereItTakesTheProblem) {
  const auto names = [](std::vector<Feature> features, const char* architecture, int dim = 64) {
    const auto units = kernel_units(backward_of({.qk_dim = dim,
                                                 .v_dim = dim,
                                                 .features = std::move(features),
                                                 .architecture = architecture}),
                                    architecture);
    std::vector<std::string> all;
    for (const KernelUnit& unit : *units) all.push_back(unit.name);
    return all;
  };
  using Names = std::vector<std::string>;
  const Names hopper{"attention_backward_main", "attention_backward_prepare",
                     "attention_backward_finish"};
  EXPECT_EQ(names({}, "sm_90a"), hopper);
  Names with_lengths = hopper;
  with_lengths.push_back("sequence_maps");
  EXPECT_EQ(names({Feature::lengths}, "sm_90a"), with_lengths);
  const Names general{"attention_backward_delta", "attention_backward_keys",
                      "attention_backward_queries"};
  EXPECT_EQ(names({}, "sm_80"), general);
  EXPECT_EQ(names({Feature::dropout_mask}, "sm_90a"), general);
  EXPECT_EQ(names({Feature::bias}, "sm_90a"),
            (Names{"attention_backward_main", "attention_backward_load",
                   "attention_backward_prepare", "attention_backward_finish"}));
  // Of wide heads a bias has its gradient from the general kernels, beside Hopper's.
  Names beside = hopper;
  beside.insert(beside.end(), {"attention_backward_delta", "attention_backward_load"});
  EXPECT_EQ(names({Feature::bias}, "sm_90a", 136), beside);
}

// Values that pairs of f16 do not hold are the general kernels', and the device finds out.
TEST(KernelUnits, OfF32AreHoppersAndTheGeneralOnes) {
  const Case f32{.dtype = DataType::f32, .architecture = "sm_90a"};
  for (const problem::Problem& problem :
       {problem::Problem(forward_of(f32)), problem::Problem(backward_of(f32))}) {
    std::vector<std::string> names;
    const auto units = kernel_units(problem, "sm_90a");
    for (const KernelUnit& unit : *units) {
      names.push_back(unit.name);
      if (unit.name != "f16_pairs") {
        EXPECT_NE(unit.source.find("unfit"), std::string::npos) << unit.name;
      }
    }
    using Names = std::vector<std::string>;
    EXPECT_EQ(names,
              std::holds_alternative<problem::AttentionProblem>(problem)
                  ? (Names{"attention_forward", "f16_pairs", "attention_forward"})
                  : (Names{"attention_backward_main", "attention_backward_prepare",
                           "attention_backward_finish", "f16_pairs", "attention_backward_delta",
                           "attention_backward_keys", "attention_backward_queries"}));
  }
}

// They are compiled once for all problems that have them.
TEST(KernelUnits, OfWhatRunsBeforeDependOnlyOnWhatTheyRead) {
  const auto unit = [](std::vector<Feature> features, int dim, std::string_view name) {
    const Case c{.dtype = name.starts_with("f16") ? DataType::f32 : DataType::bf16,
                 .qk_dim = dim,
                 .v_dim = dim,
                 .features = std::move(features),
                 .architecture = "sm_90a"};
    const auto units = kernel_units(forward_of(c), c.architecture);
    for (const KernelUnit& one : *units)
      if (one.name == name) return one.source;
    return std::string();
  };
  using F = Feature;
  EXPECT_EQ(unit({F::ragged}, 64, "sequence_maps"),
            unit({F::lengths, F::sink}, 128, "sequence_maps"));
  for (F feature : {F::causal, F::lengths, F::ragged})
    EXPECT_EQ(unit({}, 64, "f16_pairs"), unit({feature}, 128, "f16_pairs"));
  EXPECT_EQ(unit({F::rope_halves}, 64, "rope_rotations"),
            unit({F::rope_halves, F::causal, F::soft_cap}, 64, "rope_rotations"));
  EXPECT_NE(unit({F::rope_halves}, 64, "rope_rotations"),
            unit({F::rope_halves}, 128, "rope_rotations"));
  EXPECT_NE(unit({F::rope_halves}, 64, "rope_rotations"),
            unit({F::rope_interleaved}, 128, "rope_rotations"));
}

TEST(KernelUnits, NormAndRopeHaveOneUnitEach) {
  for (const problem::Problem& problem :
       {problem::Problem(norm_of({})), problem::Problem(norm_backward_of({})),
        problem::Problem(norm_backward_of({.columns = 40000})), problem::Problem(rope_of({}))}) {
    const auto units = kernel_units(problem, "sm_90a");
    ASSERT_TRUE(units.is_ok()) << units.status().message();
    EXPECT_EQ(units->size(), 1u);
  }
}

TEST(KernelUnits, NumbersPassedByValueThatAreReadFromMemoryHaveOneOfTheirOwn) {
  problem::AttentionProblem problem = forward_of({.features = {Feature::sink}});
  EXPECT_EQ(kernel_units(problem, "sm_90a")->size(), 1u);
  problem.structure.operands[static_cast<size_t>(problem.structure.sink)].on_host = true;
  const auto units = kernel_units(problem, "sm_90a");
  ASSERT_EQ(units->size(), 2u);
  EXPECT_EQ(units->back().name, "host_values");
}

TEST(KernelUnits, ARefusedProblemSaysWhy) {
  const auto refused =
      kernel_units(backward_of({.features = {Feature::paged}, .architecture = "sm_80"}), "sm_80");
  ASSERT_FALSE(refused.is_ok());
  EXPECT_EQ(refused.status().message(), "cuda: sdpa_backward has no paged K or V");
}

}  // namespace
}  // namespace heddle::engine::cuda
