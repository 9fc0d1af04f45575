#include <gtest/gtest.h>

#include <algorithm>
#include <list>
#include <set>

#include "engine/cuda/lowering.h"
#include "kernels/cases.h"
#include "kernels/lowered.h"
#include "kernels/streaming_cases.h"
#include "support/environment.h"

namespace heddle::engine::cuda {
namespace {

TEST(Architecture, IsOneThatDevicesRun) {
  for (const char* good : {"sm_80", "sm_86", "sm_90a", "sm_100", "sm_120"})
    EXPECT_TRUE(target_named(good).is_ok()) << good;
  for (const char* bad : {"", "sm_", "sm_75", "sm_90", "compute_90a", "sm_80a", "sm_99999999999"})
    EXPECT_FALSE(target_named(bad).is_ok()) << bad;
  EXPECT_EQ(target_named("sm_90").status().message(),
            "The architecture is 'sm_90', but devices of compute capability 9.0 run sm_90a.");
}

TEST(Lower, AKeepMaskThatIsWrittenHasAKernelOfItsOwn) {
  problem::AttentionProblem problem =
      forward_of({.features = {Feature::philox}, .architecture = "sm_90a"});
  ASSERT_EQ(units_of(problem, "sm_90a")->size(), 1u);
  const Dims cells{2, 8, 512, 512};
  problem.structure.operands.push_back({.dtype = DataType::f32});
  problem.sizes.layouts.push_back({.dims = cells, .strides = *dense_strides(cells)});
  problem.structure.dropout.dump = static_cast<int32_t>(problem.structure.operands.size()) - 1;
  const auto units = units_of(problem, "sm_90a");
  ASSERT_EQ(units->size(), 2u);
  EXPECT_EQ(units->back().name, "attention_dropout_dump");
}

TEST(Lower, OfABackwardAreHoppersWhereItTakesTheProblem) {
  const auto names = [](std::vector<Feature> features, const char* architecture, int dim = 64) {
    const auto units = units_of(backward_of({.qk_dim = dim,
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
  EXPECT_EQ(names({Feature::bias}, "sm_90a"), hopper);
  EXPECT_EQ(names({Feature::bias, Feature::lengths}, "sm_90a"),
            (Names{"attention_backward_main", "attention_backward_load",
                   "attention_backward_prepare", "attention_backward_finish", "sequence_maps"}));
  // Of wide heads a bias has its gradient from the general kernels, beside Hopper's.
  Names beside = hopper;
  beside.insert(beside.end(), {"attention_backward_delta", "attention_backward_load"});
  EXPECT_EQ(names({Feature::bias}, "sm_90a", 136), beside);
}

// Values that pairs of f16 do not hold are the general kernels', and the device finds out.
TEST(Lower, OfF32AreHoppersAndTheGeneralOnes) {
  const Case f32{.dtype = DataType::f32, .architecture = "sm_90a"};
  for (const problem::Problem& problem :
       {problem::Problem(forward_of(f32)), problem::Problem(backward_of(f32))}) {
    std::vector<std::string> names;
    const auto units = units_of(problem, "sm_90a");
    for (const KernelUnit& unit : *units) names.push_back(unit.name);
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
TEST(Lower, OfWhatRunsBeforeDependOnlyOnWhatTheyRead) {
  const auto unit = [](std::vector<Feature> features, int dim, std::string_view name) {
    const Case c{.dtype = name.starts_with("f16") ? DataType::f32 : DataType::bf16,
                 .qk_dim = dim,
                 .v_dim = dim,
                 .features = std::move(features),
                 .architecture = "sm_90a"};
    const auto units = units_of(forward_of(c), c.architecture);
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

TEST(Lower, NormAndRopeHaveOneUnitEach) {
  for (const problem::Problem& problem :
       {problem::Problem(norm_of({})), problem::Problem(norm_backward_of({})),
        problem::Problem(norm_backward_of({.columns = 40000})), problem::Problem(rope_of({}))}) {
    const auto units = units_of(problem, "sm_90a");
    ASSERT_TRUE(units.is_ok()) << units.status().message();
    EXPECT_EQ(units->size(), 1u);
  }
}

TEST(Lower, NumbersPassedByValueThatAreReadFromMemoryHaveOneOfTheirOwn) {
  problem::AttentionProblem problem = forward_of({.features = {Feature::sink}});
  EXPECT_EQ(units_of(problem, "sm_90a")->size(), 1u);
  problem.structure.operands[static_cast<size_t>(problem.structure.sink)].on_host = true;
  const auto units = units_of(problem, "sm_90a");
  ASSERT_EQ(units->size(), 2u);
  EXPECT_EQ(units->back().name, "host_values");
}

TEST(Lower, ARefusedProblemSaysWhy) {
  const auto refused =
      units_of(backward_of({.features = {Feature::paged}, .architecture = "sm_80"}), "sm_80");
  ASSERT_FALSE(refused.is_ok());
  EXPECT_EQ(refused.status().message(),
            "attention backward: k is paged, which only the forward pass can read");
}

std::string described(const problem::AttentionProblem& problem) {
  const Result<Lowering> lowering = lowered(problem, "sm_90a");
  return lowering.is_ok() ? lowering->description : lowering.status().message();
}

/// Codes and rings are read by the decode kernel; of others codes are numbers before.
TEST(Lower, ReadsCaches) {
  const auto step = [](std::vector<Feature> features, int64_t rows, int dim = 128) {
    return described(forward_of({DataType::bf16, dim, dim, std::move(features)}, rows, 512));
  };
  EXPECT_EQ(step({Feature::i4_codes}, 1),
            "attention forward, decode kernel of codes, 8 rows, 32 keys a warp, sm_90a");
  EXPECT_EQ(step({Feature::i8_codes, Feature::ring}, 1),
            "attention forward, decode kernel of codes in a ring, 8 rows, 32 keys a warp, sm_90a");
  EXPECT_EQ(step({Feature::f8_codes}, 1, 72),
            "k from codes of f8e4m3 to bf16, sm_90a; v from codes of f8e4m3 to bf16, sm_90a; "
            "attention forward, decode kernel, 8 rows, 16 keys a warp, sm_90a");
  EXPECT_EQ(
      step({Feature::i8_codes}, 512),
      "k from codes of i8 to bf16, sm_90a; v from codes of i8 to bf16, sm_90a; " + step({}, 512));
  EXPECT_EQ(step({Feature::ring}, 512),
            "attention forward, general kernel, 128 x 64 tiles, sm_90a");
}

TEST(Lower, ReadsASinkForEachHeadInF32) {
  const Case c{.dtype = DataType::bf16, .qk_dim = 64, .v_dim = 64, .length = 512};
  const auto with_sink = [&](DataType type, int64_t heads) {
    problem::AttentionProblem p = forward_of(c);
    p.structure.sink = static_cast<problem::OperandId>(p.structure.operands.size());
    p.structure.operands.push_back({type});
    p.sizes.layouts.push_back({{1, heads, 1, 1}, {0, heads == 1 ? 0 : 1, 0, 0}});
    return described(p);
  };
  const int64_t heads = forward_of(c).sizes.q_heads;
  const std::string plain = with_sink(DataType::f32, heads);
  EXPECT_EQ(with_sink(DataType::bf16, heads), "sink converted to f32, sm_90a; " + plain);
  EXPECT_EQ(with_sink(DataType::f32, 1), "sink copied, sm_90a; " + plain);
}

TEST(Lower, ScoresAreWrittenByTheGeneralKernels) {
  problem::AttentionProblem p =
      forward_of({.dtype = DataType::bf16, .qk_dim = 64, .v_dim = 64, .length = 512});
  p.structure.scores = static_cast<problem::OperandId>(p.structure.operands.size());
  p.structure.operands.push_back({DataType::f32});
  const Dims cells{p.sizes.batch, p.sizes.q_heads, p.sizes.q_length, p.sizes.kv_length};
  p.sizes.layouts.push_back({cells, *dense_strides(cells)});
  const Lowering lowering = *lowered(p, "sm_90a");
  EXPECT_EQ(lowering.description, "attention forward, general kernel, 128 x 128 tiles, sm_90a");
  EXPECT_EQ(lowering.passed_over.back().reason, "cuda: the Hopper kernel writes no scores");
}

TEST(Lower, RefusesWhatNoCacheIsWrittenAsOrOf) {
  EXPECT_EQ(lowered(append_of({}), "sm_90a")->description, "cache append, runs of 4, sm_90a");
  EXPECT_EQ(lowered(append_of({.gap = 1}), "sm_90a")->description,
            "cache append, runs of 1, sm_90a");
  const auto refusal = [](const CacheAppendCase& c) {
    return lowered(append_of(c), "sm_90a").status().message();
  };
  EXPECT_EQ(refusal({.head_dim = 1032}),
            "cuda: cache_append has heads of 1032 columns, but the kernel takes up to 1024");
  EXPECT_EQ(refusal({.x = DataType::f64}),
            "cuda: cache_append q is f64, but the kernel takes f32, bf16, f16");
}

TEST(Lower, SaysWhichWaysWerePassedOverAndWhy) {
  const auto passed_over = [](const problem::Problem& problem, const char* architecture) {
    std::vector<std::string> all;
    const Result<Lowering> lowering = lowered(problem, architecture);
    for (const PassedOver& one : lowering->passed_over) all.push_back(one.name + ": " + one.reason);
    return all;
  };
  using Reasons = std::vector<std::string>;
  EXPECT_EQ(passed_over(forward_of({}), "sm_90a"), Reasons{});
  EXPECT_EQ(passed_over(forward_of({.features = {Feature::block_mask}}), "sm_90a"),
            Reasons{"Hopper forward: cuda: the Hopper kernel takes no block mask"});
  EXPECT_EQ(passed_over(backward_of({.features = {Feature::dropout_mask}}), "sm_90a"),
            (Reasons{"Hopper backward: cuda: the Hopper backward draws dropout from a counter, "
                     "without masks in memory",
                     "Hopper backward, gradients of what the score reads apart: cuda: no gradient "
                     "of what the score reads is wanted"}));
  EXPECT_EQ(passed_over(rope_of({}), "sm_80"), Reasons{});
}

TEST(Lower, FewRowsAgainstManyKeysAreTheDecodeKernels) {
  const auto kernel = [](DataType dtype, int64_t rows, int64_t keys) {
    const auto units = units_of(forward_of({.dtype = dtype}, rows, keys), "sm_80");
    return units.is_ok() ? units->front().name : units.status().message();
  };
  EXPECT_EQ(kernel(DataType::bf16, 1, 256), "attention_decode");
  EXPECT_EQ(kernel(DataType::f16, 16, 512), "attention_decode");
  EXPECT_EQ(kernel(DataType::bf16, 1, 255), "attention_forward");
  EXPECT_EQ(kernel(DataType::bf16, 65, 512), "attention_forward");
  EXPECT_EQ(kernel(DataType::f32, 1, 512), "attention_forward");
}

// All heads of a group in one tile: of wide heads whatever rows they are together, as else each
// head would read the keys again.
TEST(Lower, FewRowsOfWideHeadsAreTheDecodeKernels) {
  const auto described = [](const Case& c, int64_t rows, int64_t key_heads,
                            const char* architecture) {
    problem::AttentionProblem problem = forward_of(c, rows, 512);
    problem.sizes.k_heads = problem.sizes.v_heads = key_heads;
    for (problem::OperandId id : {problem.structure.k, problem.structure.v})
      problem.sizes.layout(id).dims[1] = key_heads;
    const Result<Lowering> lowering = lower(problem, *target_named(architecture));
    return lowering.is_ok() ? lowering->description : lowering.status().message();
  };
  const Case latent{.qk_dim = 576, .v_dim = 512};
  // Of a latent values may lie in keys; where they have as many columns few rows stay with all
  // warps.
  const Case apart{.qk_dim = 512, .v_dim = 512};
  for (const auto& [c, architecture, rows, words] :
       {std::tuple{&latent, "sm_90a", 1, "64 rows, 64 keys a step by warp groups"},
        {&latent, "sm_90a", 64, "64 rows, 64 keys a step by warp groups"},
        {&apart, "sm_90a", 1, "16 rows, 32 keys a step of all warps"},
        {&apart, "sm_90a", 8, "64 rows, 64 keys a step by warp groups"},
        {&latent, "sm_80", 1, "16 rows, 32 keys a step of all warps"},
        {&latent, "sm_80", 64, "32 rows, 32 keys a step of all warps"}}) {
    const std::string said = described(*c, rows, 1, architecture);
    EXPECT_NE(said.find("decode kernel"), std::string::npos) << said;
    EXPECT_NE(said.find(words), std::string::npos) << said;
  }
  for (const auto& [architecture, kernel] :
       {std::pair{"sm_90a", "Hopper kernel"}, {"sm_80", "general kernel"}}) {
    const std::string said = described(latent, 65, 1, architecture);
    EXPECT_NE(said.find(kernel), std::string::npos) << said;
    EXPECT_NE(said.find("O in parts"), std::string::npos) << said;
  }
  // Of f32 and of codes others compute.
  EXPECT_NE(described({.dtype = DataType::f32, .qk_dim = 320, .v_dim = 320}, 1, 1, "sm_90a")
                .find("general kernel"),
            std::string::npos);
  const std::string of_codes =
      described({.qk_dim = 512, .v_dim = 512, .features = {Feature::i8_codes}}, 1, 8, "sm_90a");
  EXPECT_NE(of_codes.find("from codes"), std::string::npos) << of_codes;
}

TEST(Lower, GivesTheSameOfTheSame) {
  for (const char* architecture : {"sm_80", "sm_90a"}) {
    for (int feature = 0; feature <= static_cast<int>(Feature::rope_leading); ++feature) {
      const Case c{.features = {static_cast<Feature>(feature)}};
      const Result<Lowering> one = lowered(forward_of(c), architecture),
                             other = lowered(forward_of(c), architecture);
      ASSERT_TRUE(one.is_ok() && other.is_ok()) << title(c);
      EXPECT_EQ(one->units, other->units) << title(c);
      EXPECT_EQ(one->workspace_bytes, other->workspace_bytes) << title(c);
      EXPECT_EQ(one->description, other->description) << title(c);
    }
  }
}

// A program runs on another device of the architecture than the one its workspace was measured for.
TEST(Lower, TheWorkspaceIsTheSameForAnyNumberOfProcessors) {
  for (const char* architecture : {"sm_80", "sm_90a"}) {
    const Case attention{.features = {Feature::causal}, .architecture = architecture};
    for (const problem::Problem& problem :
         {problem::Problem(norm_backward_of({.rows = 4096})),
          problem::Problem(norm_backward_of({.columns = 40000, .rows = 4096})),
          problem::Problem(norm_of({})), problem::Problem(forward_of(attention)),
          problem::Problem(backward_of(attention))}) {
      std::set<int64_t> bytes;
      for (int processors : {1, 60, 108, 132, 170, 1000}) {
        Target target = *target_named(architecture);
        target.processors = processors;
        const Result<Lowering> lowering = lower(problem, target);
        ASSERT_TRUE(lowering.is_ok()) << lowering.status().message();
        bytes.insert(lowering->workspace_bytes);
      }
      EXPECT_EQ(bytes.size(), 1u) << architecture << ": " << *bytes.begin() << " to "
                                  << *bytes.rbegin();
    }
  }
}

problem::AllowedPaths without(std::initializer_list<const char*> variables) {
  std::list<testing::Environment> set;
  for (const char* variable : variables) set.emplace_back(variable, "1");
  return *problem::AllowedPaths::of_environment();
}

TEST(Lower, TakesThePathsThatAreAllowed) {
  using problem::AttentionPath;
  const auto path = [](const problem::Problem& problem, const char* architecture,
                       problem::AllowedPaths paths) {
    Target target = *target_named(architecture);
    target.paths = paths;
    const Result<Lowering> lowering = lower(problem, target);
    EXPECT_TRUE(lowering.is_ok()) << lowering.status().message();
    return lowering->attention_path->path;
  };
  const problem::Problem prompt = forward_of({.features = {Feature::causal}, .length = 2000});
  const problem::Problem token = forward_of({}, 1, 2000);
  const problem::AllowedPaths all, no_flash = without({"ORT_DISABLE_FLASH_ATTENTION"}),
                                   no_decode = without({"ORT_DISABLE_FLASH_DECODE"});
  EXPECT_EQ(path(prompt, "sm_90a", all), AttentionPath::flash);
  EXPECT_EQ(path(prompt, "sm_80", all), AttentionPath::memory_efficient);
  EXPECT_EQ(path(prompt, "sm_90a", no_flash), AttentionPath::memory_efficient);
  EXPECT_EQ(path(token, "sm_90a", all), AttentionPath::decode);
  EXPECT_EQ(path(token, "sm_80", all), AttentionPath::decode);
  EXPECT_EQ(path(token, "sm_90a", no_decode), AttentionPath::flash);
  EXPECT_EQ(path(token, "sm_80", no_decode), AttentionPath::memory_efficient);
  EXPECT_EQ(path(token, "sm_90a", no_flash), AttentionPath::memory_efficient);
}

TEST(Lower, RefusesAnAttentionWhosePathsAreSwitchedOff) {
  Target target = *target_named("sm_80");
  target.paths = without({"HEDDLE_DISABLE_MEMORY_EFFICIENT_ATTENTION"});
  const problem::Problem prompt = forward_of({.features = {Feature::causal}, .length = 2000});
  EXPECT_EQ(
      lower(prompt, target).status().message(),
      "cuda: no path serves the attention, as some are switched off: memory_efficient by "
      "HEDDLE_DISABLE_MEMORY_EFFICIENT_ATTENTION=1; Hopper forward: cuda: sm_80 is no Hopper; "
      "general kernels, after copies: switched off by "
      "HEDDLE_DISABLE_MEMORY_EFFICIENT_ATTENTION=1; general forward: switched off by "
      "HEDDLE_DISABLE_MEMORY_EFFICIENT_ATTENTION=1");
  EXPECT_TRUE(lower(problem::Problem(norm_of({})), target).is_ok());
  EXPECT_TRUE(
      lower(problem::Problem(backward_of({.features = {Feature::causal}})), target).is_ok());
}

// What kernels ask for and what launches say of themselves is one thing.
TEST(Lower, NumbersItsKernelsByItsUnits) {
  for (const char* architecture : {"sm_80", "sm_90a"}) {
    for (const Case& c : {Case{}, Case{.dtype = DataType::f32, .features = {Feature::lengths}},
                          Case{.qk_dim = 136, .v_dim = 136, .features = {Feature::bias}}}) {
      for (const problem::Problem& problem :
           {problem::Problem(forward_of(c)), problem::Problem(backward_of(c))}) {
        const Result<Lowering> lowering = lowered(problem, architecture);
        ASSERT_TRUE(lowering.is_ok()) << lowering.status().message();
        std::set<size_t> used;
        for (const LoweredKernel& kernel : lowering->kernels) {
          ASSERT_LT(kernel.unit, lowering->units.size());
          const KernelUnit& unit = lowering->units[kernel.unit];
          EXPECT_TRUE(kernel.name.starts_with(unit.name)) << kernel.name;
          EXPECT_NE(unit.source.find(kernel.name + "("), std::string::npos) << kernel.name;
          used.insert(kernel.unit);
        }
        EXPECT_EQ(used.size(), lowering->units.size()) << "a unit that nobody launches";
      }
    }
  }
}

}  // namespace
}  // namespace heddle::engine::cuda
