#include "engine/cuda/attention_backward_sm90.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "engine/cuda/score_source.h"
#include "kernels/cases.h"
#include "kernels/lowered.h"
#include "problem/score_builder.h"
#include "problem/score_derivative.h"

namespace heddle::engine::cuda {
namespace {

using problem::AttentionBackwardProblem;
using problem::ScoreOp;

AttentionBackwardProblem backward(int dim, std::vector<Feature> features, int64_t length = 512) {
  return backward_of(
      {.qk_dim = dim, .v_dim = dim, .features = std::move(features), .length = length});
}

std::string refusal(const AttentionBackwardProblem& problem) {
  const auto config = configure_backward_sm90(problem);
  if (config.is_ok()) return "taken";
  EXPECT_EQ(config.status().code(), Code::graph_not_supported);
  return config.status().message();
}

TEST(BackwardSm90Config, FitsSharedMemoryForEveryHeadDim) {
  for (int dim = 8; dim <= 256; dim += 8) {
    for (const auto& features : {std::vector<Feature>{},
                                 {Feature::soft_cap},
                                 {Feature::alibi},
                                 {Feature::philox},
                                 {Feature::statistics},
                                 {Feature::alibi, Feature::statistics}}) {
      const auto config = configure_backward_sm90(backward(dim, features, 777));
      ASSERT_TRUE(config.is_ok()) << dim << ": " << config.status().message();
      EXPECT_LE(config->shared_bytes(), 227 * 1024) << dim;
      EXPECT_GE(config->dq_width(), dim);
      EXPECT_EQ(config->q_rounded % config->tile_m, 0);
      EXPECT_LT(config->q_rounded - 777, config->tile_m);
    }
  }
}

TEST(BackwardSm90Config, WideTilesOfQueriesNeedRegistersThatSlopesTake) {
  EXPECT_EQ(configure_backward_sm90(backward(64, {}))->tile_m, 128);
  EXPECT_EQ(configure_backward_sm90(backward(64, {Feature::alibi}))->tile_m, 128);
  EXPECT_EQ(configure_backward_sm90(backward(64, {Feature::soft_cap}))->tile_m, 64);
  EXPECT_EQ(configure_backward_sm90(backward(128, {}))->tile_m, 64);
  EXPECT_TRUE(configure_backward_sm90(backward(128, {}))->dk_under_dp);
  EXPECT_FALSE(configure_backward_sm90(backward(128, {Feature::alibi}))->dk_under_dp);
}

// dS is held in 16 bits, which a slope of 1e-4 would leave few of.
TEST(BackwardSm90Config, ConstantSlopesAreFactorsOfTheResults) {
  AttentionBackwardProblem problem = backward(64, {Feature::soft_cap});
  problem::ScoreBuilder b;
  problem.structure.forward.score =
      b.expression(b.apply(ScoreOp::multiply, b.leaf(ScoreOp::dot), b.constant(1e-4)));
  problem.structure.d_dot = problem::derivative_by_dot(problem.structure.forward.score);
  const auto config = configure_backward_sm90(problem);
  ASSERT_TRUE(config.is_ok()) << config.status().message();
  EXPECT_TRUE(config->unit_slope);
  EXPECT_EQ(config->slope_factor, 1e-4f);
}

TEST(BackwardSm90Config, HeadDimsAbove128HaveBlocksOf64Keys) {
  const auto config = configure_backward_sm90(backward(136, {}));
  EXPECT_TRUE(config->by_gradient);
  EXPECT_EQ(config->tile_n(), 64);
  EXPECT_EQ(config->threads(), 512);
  EXPECT_EQ(config->dq_width(), 192);
  EXPECT_EQ(config->dq_turns(), 2);
  EXPECT_EQ(configure_backward_sm90(backward_of({.qk_dim = 64, .v_dim = 136}))->dq_turns(), 1);
  EXPECT_FALSE(configure_backward_sm90(backward(128, {}))->by_gradient);
}

TEST(BackwardSm90Config, HeadsRunSideBySideWhereThatWasMeasuredToPay) {
  const auto head_group = [](std::vector<Feature> features, int64_t length, int64_t k_heads = 8,
                             int dim = 128) {
    AttentionBackwardProblem problem = backward(dim, std::move(features), length);
    problem.sizes.batch = 32;
    problem.sizes.k_heads = problem.sizes.v_heads = k_heads;
    return configure_backward_sm90(problem)->head_group;
  };
  EXPECT_EQ(head_group({}, 8192), 1);
  EXPECT_EQ(head_group({Feature::causal}, 4096), 8);
  EXPECT_EQ(head_group({Feature::causal}, 8192), 2);
  // In a fixed order: the heads of a wave of 132 blocks.
  EXPECT_EQ(head_group({Feature::deterministic}, 0), 132);
  EXPECT_EQ(head_group({Feature::deterministic}, 512), 33);
  EXPECT_EQ(head_group({Feature::deterministic}, 8192), 2);
  EXPECT_EQ(head_group({Feature::deterministic}, 1 << 20), 1);
  EXPECT_EQ(head_group({Feature::causal, Feature::deterministic}, 512), 1);
  EXPECT_EQ(head_group({Feature::causal, Feature::deterministic}, 512, 2), 8);
  // Above head_dim 128, of two waves, at most 16; of groups, 8 query heads, at least 2 key heads.
  EXPECT_EQ(head_group({Feature::deterministic}, 512, 8, 256), 16);
  EXPECT_EQ(head_group({Feature::deterministic}, 2048, 8, 256), 8);
  EXPECT_EQ(head_group({Feature::deterministic}, 8192, 8, 256), 2);
  EXPECT_EQ(head_group({Feature::deterministic}, 16384, 8, 256), 1);
  EXPECT_EQ(head_group({Feature::causal, Feature::deterministic}, 512, 8, 256), 1);
  EXPECT_EQ(head_group({Feature::causal, Feature::deterministic}, 512, 4, 256), 4);
  EXPECT_EQ(head_group({Feature::causal, Feature::deterministic}, 512, 1, 256), 2);
}

// One number more a row, in the workspace and in each stage of Q. In f32 it takes part of what is
// asked for to align the window, which is aligned as it is declared.
TEST(BackwardSm90Config, MaximaAndSumsTakeTwoNumbersARow) {
  for (const auto& [dtype, dim] : {std::pair{DataType::bf16, 64},
                                   {DataType::bf16, 128},
                                   {DataType::bf16, 256},
                                   {DataType::f32, 64},
                                   {DataType::f32, 128}}) {
    const auto configured = [&, dtype = dtype, dim = dim](std::vector<Feature> features) {
      const AttentionBackwardProblem problem = backward_of({.dtype = dtype,
                                                            .qk_dim = dim,
                                                            .v_dim = dim,
                                                            .features = std::move(features),
                                                            .length = 512});
      const auto config = configure_backward_sm90(problem);
      EXPECT_TRUE(config.is_ok()) << config.status().message();
      return std::pair{*config, workspace_of(problem, *config)};
    };
    const auto [joined, joined_at] = configured({});
    const auto [apart, apart_at] = configured({Feature::statistics});
    EXPECT_FALSE(joined.max_and_sum);
    EXPECT_TRUE(apart.max_and_sum);
    EXPECT_EQ(apart_at.delta - apart_at.negative_lse,
              2 * (joined_at.delta - joined_at.negative_lse));
    EXPECT_EQ(apart_at.bytes - joined_at.bytes, joined_at.delta - joined_at.negative_lse);
    const int64_t more = apart.shared_bytes() - joined.shared_bytes(),
                  stages = (joined.by_gradient ? 2 : 3) * 4 * joined.tile_m;
    const bool is_full = dtype == DataType::f32;
    EXPECT_EQ(more, is_full ? 227 * 1024 - joined.shared_bytes() : stages);
    EXPECT_LT(is_full ? more : 0, stages);
  }
}

// Scores that are held against a maximum are to be the forward's own to the last bit.
TEST(BackwardSm90Source, ScoresHeldAgainstAMaximumAreComputedAsTheForwardDoes) {
  const auto score = [](const problem::AttentionStructure& structure) {
    std::vector<problem::OperandId> loads;
    return score_source("Score", structure.score, structure, loads);
  };
  const Case apart{.features = {Feature::alibi, Feature::statistics}};
  const std::string source = score(backward_of(apart).structure.forward);
  EXPECT_EQ(source, score(forward_of(apart).structure));
  EXPECT_NE(source, score(backward_of({.features = {Feature::alibi}}).structure.forward));
}

AttentionBackwardProblem without_gradients_of_loads(AttentionBackwardProblem problem) {
  problem.structure.load_gradients.clear();
  return problem;
}

TEST(BackwardSm90Config, TakesByTilesWhatAScoreReadsInEveryCell) {
  for (int dim = 8; dim <= 256; dim += 8) {
    for (const auto& features : {std::vector<Feature>{Feature::bias},
                                 {Feature::boolean_mask},
                                 {Feature::bias, Feature::philox},
                                 {Feature::boolean_mask, Feature::lengths},
                                 {Feature::bias, Feature::statistics}}) {
      const AttentionBackwardProblem problem =
          without_gradients_of_loads(backward(dim, features, 784));
      const auto config = configure_backward_sm90(problem);
      ASSERT_TRUE(config.is_ok()) << dim << ": " << config.status().message();
      EXPECT_EQ(config->tiled_operand != problem::kAbsent,
                features[0] == Feature::bias || dim <= 192);
      EXPECT_EQ(config->tile_m, 64);
      EXPECT_LE(config->shared_bytes(), 227 * 1024) << dim;
    }
  }
  const AttentionBackwardProblem problem =
      without_gradients_of_loads(backward(128, {Feature::bias}));
  const auto config = configure_backward_sm90(problem);
  EXPECT_EQ(config->tiled, sm90::Tiled::values);
  std::vector<problem::OperandId> loads;
  backward_sm90_units(problem.structure, problem::facts_of(problem), *config, loads);
  EXPECT_TRUE(loads.empty()) << "it comes by tiles alone";
}

TEST(BackwardSm90Config, LoadsByTheCellWhatTheCopyEngineCannotFetch) {
  const auto tiled = [](const AttentionBackwardProblem& problem) {
    return configure_backward_sm90(problem)->tiled_operand;
  };
  const auto bias_of = [](const AttentionBackwardProblem& problem) {
    return static_cast<size_t>(problem.structure.forward.score.nodes[1].operand);
  };
  AttentionBackwardProblem odd = without_gradients_of_loads(backward(64, {Feature::bias}, 777));
  EXPECT_EQ(tiled(odd), problem::kAbsent);  // rows of 777 values
  AttentionBackwardProblem f32 = without_gradients_of_loads(backward(64, {Feature::bias}));
  f32.structure.forward.operands[bias_of(f32)].dtype = DataType::f32;
  EXPECT_NE(tiled(f32), problem::kAbsent);
  // Above head dim 64 a tile of f32 finds no shared memory.
  AttentionBackwardProblem wide = without_gradients_of_loads(backward(72, {Feature::wide_bias}));
  EXPECT_EQ(tiled(wide), problem::kAbsent);
  const auto gradient = configure_backward_sm90(backward(64, {Feature::wide_bias}));
  ASSERT_TRUE(gradient.is_ok()) << gradient.status().message();
  EXPECT_TRUE(gradient->load_gradient);
  EXPECT_LE(std::max(gradient->shared_bytes(), gradient->load_shared_bytes()), 227 * 1024);
  AttentionBackwardProblem per_key = without_gradients_of_loads(backward(64, {Feature::bias}));
  per_key.sizes.layouts[bias_of(per_key)].dims[2] = 1;
  per_key.sizes.layouts[bias_of(per_key)].strides[2] = 0;
  EXPECT_EQ(tiled(per_key), problem::kAbsent);
  AttentionBackwardProblem across = without_gradients_of_loads(backward(64, {Feature::bias}));
  std::swap(across.sizes.layouts[bias_of(across)].strides[2],
            across.sizes.layouts[bias_of(across)].strides[3]);
  EXPECT_EQ(tiled(across), problem::kAbsent);
}

TEST(BackwardSm90Config, GroupsOfHeadsGoDownwardsInAFixedCausalOrder) {
  AttentionBackwardProblem problem = backward(128, {Feature::causal, Feature::deterministic});
  EXPECT_FALSE(configure_backward_sm90(problem)->downwards);
  problem.sizes.k_heads = problem.sizes.v_heads = 2;
  EXPECT_TRUE(configure_backward_sm90(problem)->downwards);
  problem.structure.deterministic = false;
  EXPECT_FALSE(configure_backward_sm90(problem)->downwards);
}

TEST(BackwardSm90Workspace, IsLinearInTheLengthAndHasTurnsOnlyInAFixedOrder) {
  const auto bytes = [](std::vector<Feature> features, int64_t length) {
    const AttentionBackwardProblem problem = backward(128, std::move(features), length);
    return workspace_of(problem, *configure_backward_sm90(problem));
  };
  const BackwardSm90Workspace free = bytes({}, 1024);
  // Batch 2, 8 heads, 1024 rows: two statistics and 128 sums of 4 bytes.
  EXPECT_EQ(free.bytes, 2 * 8 * 1024 * 4 * (2 + 128));
  EXPECT_EQ(free.turns, free.bytes);
  EXPECT_EQ(bytes({}, 4096).bytes, 4 * free.bytes);
  const BackwardSm90Workspace ordered = bytes({Feature::deterministic}, 1024);
  EXPECT_EQ(ordered.bytes - ordered.turns, 2 * 8 * (1024 / 64) * 2 * 4);
  for (int64_t at : {free.delta, free.d_q_sum, ordered.turns}) EXPECT_EQ(at % 256, 0);
}

TEST(BackwardSm90Workspace, HoldsMapsOfEachSequenceWhereThereAreLengths) {
  for (Feature feature : {Feature::lengths, Feature::ragged}) {
    const AttentionBackwardProblem problem = backward(128, {feature, Feature::deterministic}, 777);
    const auto config = configure_backward_sm90(problem);
    ASSERT_TRUE(config.is_ok()) << config.status().message();
    EXPECT_TRUE(config->lengths);
    const BackwardSm90Workspace at = workspace_of(problem, *config);
    EXPECT_EQ(at.maps % 128, 0);
    EXPECT_EQ(at.bytes - at.maps, 2 * 4 * 128);  // batch 2, four maps of 128 bytes
  }
  EXPECT_FALSE(configure_backward_sm90(backward(128, {}))->lengths);
}

TEST(BackwardSm90Config, TakesRaggedTensorsWhoseSequencesStartOn16Bytes) {
  AttentionBackwardProblem problem = backward(64, {Feature::ragged});
  EXPECT_EQ(refusal(problem), "taken");
  for (problem::OperandLayout& layout : problem.sizes.layouts) layout.ragged_multiplier = 4;
  EXPECT_NE(refusal(problem), "taken");
}

TEST(BackwardSm90Config, RefusesWhatTheGeneralKernelsTake) {
  EXPECT_EQ(refusal(backward(128, {Feature::causal, Feature::lengths, Feature::sink})), "taken");
  EXPECT_EQ(refusal(backward(256, {Feature::causal})), "taken");
  EXPECT_EQ(refusal(backward(100, {})),
            "cuda: sdpa_backward head_dim 100 (q, k) and 100 (v); the Hopper kernel takes "
            "multiples of 8");
  EXPECT_EQ(refusal(backward(64, {Feature::philox})), "taken");
  EXPECT_EQ(refusal(backward(64, {Feature::philox, Feature::soft_cap})),
            "cuda: the Hopper backward takes no dropout of scores whose derivative by the dot "
            "product is not 1");
  EXPECT_EQ(refusal(backward(192, {Feature::threefry})), "taken");
  EXPECT_EQ(refusal(backward(256, {Feature::threefry})),
            "cuda: the Hopper backward takes threefry dropout up to head_dim 192");
  EXPECT_EQ(refusal(backward(256, {Feature::lengths, Feature::soft_cap})), "taken");
  EXPECT_EQ(refusal(backward(64, {Feature::dropout_mask})),
            "cuda: the Hopper backward draws dropout from a counter, without masks in memory");
  EXPECT_EQ(refusal(backward(128, {Feature::bias})), "taken");
  for (const AttentionBackwardProblem& problem :
       {backward(136, {Feature::bias}), backward(64, {Feature::bias}, 777)}) {
    EXPECT_EQ(refusal(problem),
              "cuda: the Hopper backward gives no gradients of what the score reads but of a bias "
              "that comes by tiles");
  }
  EXPECT_EQ(refusal(backward(64, {Feature::block_mask})),
            "cuda: the Hopper backward takes no block mask");
  EXPECT_NE(refusal(backward(64, {Feature::unaligned})), "taken");
  AttentionBackwardProblem keys_only = backward(64, {});
  keys_only.structure.d_q = problem::kAbsent;
  EXPECT_EQ(refusal(keys_only), "taken");
  keys_only.structure.d_k = keys_only.structure.d_v = problem::kAbsent;
  EXPECT_EQ(refusal(keys_only),
            "cuda: the Hopper backward writes dQ, dK and dV, of which none is wanted");
  AttentionBackwardProblem value_heads = backward(64, {});
  value_heads.sizes.v_heads = 4;
  EXPECT_EQ(refusal(value_heads),
            "cuda: the Hopper backward takes as many key heads as value heads");
  AttentionBackwardProblem many_rows = backward(64, {}, 512);
  many_rows.sizes.q_length = int64_t{1} << 30;
  EXPECT_NE(refusal(many_rows), "taken");
  AttentionBackwardProblem many_keys = backward(64, {}, 512);
  many_keys.sizes.batch = many_keys.sizes.k_heads = many_keys.sizes.v_heads = 1;
  many_keys.sizes.kv_length = (int64_t{1} << 30) - 256;
  EXPECT_EQ(refusal(many_keys), "taken");
  ++many_keys.sizes.kv_length;
  EXPECT_EQ(refusal(many_keys),
            "cuda: sdpa has 512 rows of queries and 1073741569 keys; the kernel counts up to "
            "1073741568");
}

// Names and grids of the launches that have something to do.
std::vector<std::string> launched(const AttentionBackwardProblem& problem) {
  std::vector<std::string> all;
  for (const auto& [name, launch] :
       launches_of_backward_sm90(problem, *configure_backward_sm90(problem))) {
    if (launch.is_empty()) continue;
    all.push_back(fmt::format("{} {} {} {}", std::string(name).substr(19), launch.grid_x,
                              launch.grid_y, launch.grid_z));
  }
  return all;
}

TEST(BackwardSm90Launches, CoverRowsOfQueriesAndTilesOfKeys) {
  using Lines = std::vector<std::string>;
  // Batch 2, 8 heads, 777 rows: 13 tiles of 64 queries and 7 of 128 keys.
  AttentionBackwardProblem problem = backward(128, {Feature::sink}, 777);
  EXPECT_EQ(launched(problem),
            (Lines{"prepare 13 8 2", "main 112 1 1", "finish 13 8 2", "sink 8 1 1"}));
  // Steps of 128 queries: 7, prepared 64 rows a block.
  EXPECT_EQ(launched(backward(64, {}, 777)),
            (Lines{"prepare 14 8 2", "main 112 1 1", "finish 7 8 2"}));
  problem.structure.d_q = problem::kAbsent;
  EXPECT_EQ(launched(problem), (Lines{"prepare 13 8 2", "main 112 1 1", "sink 8 1 1"}));
  // The gradient of a bias of 8 heads for both batch entries, whose blocks are a cluster; or, where
  // they have their lengths, by a kernel of its own.
  const AttentionBackwardProblem biased = backward(64, {Feature::bias}, 776);
  EXPECT_EQ(launched(biased), (Lines{"prepare 13 8 2", "main 112 1 1", "finish 13 8 2"}));
  EXPECT_EQ(launches_of_backward_sm90(biased, *configure_backward_sm90(biased))[1].launch.cluster,
            2U);
  EXPECT_EQ(launched(backward(64, {Feature::bias, Feature::lengths}, 776)),
            (Lines{"prepare 13 8 2", "main 112 1 1", "finish 13 8 2", "load 7 13 8"}));
}

TEST(BackwardSm90Launches, OfEmptyTensorsAreTheOnesThatWriteTheirZeros) {
  using Lines = std::vector<std::string>;
  AttentionBackwardProblem no_keys = backward(128, {Feature::sink});
  no_keys.sizes.kv_length = 0;
  EXPECT_EQ(launched(no_keys), (Lines{"prepare 8 8 2", "finish 8 8 2", "sink 8 1 1"}));
  AttentionBackwardProblem no_queries = backward(128, {Feature::sink});
  no_queries.sizes.q_length = 0;
  EXPECT_EQ(launched(no_queries), (Lines{"main 64 1 1", "sink 8 1 1"}));
  AttentionBackwardProblem no_batch = backward(128, {});
  no_batch.sizes.batch = 0;
  EXPECT_TRUE(launched(no_batch).empty());
}

TEST(BackwardSm90Launches, WaitForTheirPredecessorThemselvesOrAreOrderedByTheStream) {
  const AttentionBackwardProblem problem = backward(128, {Feature::sink});
  std::vector<bool> overlaps;
  for (const auto& [name, launch] :
       launches_of_backward_sm90(problem, *configure_backward_sm90(problem)))
    overlaps.push_back(launch.overlaps_predecessor);
  EXPECT_EQ(overlaps, (std::vector{false, true, true, false}));
}

TEST(BackwardSm90Config, HasAKernelForTheSinkOnlyIfItIsWanted) {
  for (bool sink : {false, true}) {
    const auto lowering =
        lowered(sink ? backward(64, {Feature::sink}) : backward(64, {}), "sm_90a");
    ASSERT_TRUE(lowering.is_ok()) << lowering.status().message();
    const auto& kernels = lowering->kernels;
    EXPECT_EQ(std::any_of(kernels.begin(), kernels.end(),
                          [](const LoweredKernel& kernel) {
                            return kernel.name == "attention_backward_sink";
                          }),
              sink);
  }
}

TEST(BackwardSm90Config, TakesPlainF32AsPairsUpTo512Columns) {
  const auto f32 = [](int dim, std::vector<Feature> features) {
    return backward_of({.dtype = DataType::f32,
                        .qk_dim = dim,
                        .v_dim = dim,
                        .features = std::move(features),
                        .length = 777});
  };
  for (int dim = 8; dim <= 512; dim += 8) {
    const AttentionBackwardProblem problem = f32(dim, {Feature::causal});
    const auto config = configure_backward_sm90(problem);
    ASSERT_TRUE(config.is_ok()) << dim << ": " << config.status().message();
    EXPECT_EQ(config->planes, 2);
    EXPECT_EQ(config->tile_m, dim > 160 ? 32 : 64);
    EXPECT_EQ(config->by_gradient, dim > 64 && dim <= 256);
    EXPECT_EQ(config->shares(), dim > 256 ? 4 : 1);
    EXPECT_EQ(config->q_rounded % 64, 0);
    EXPECT_LE(config->shared_bytes(), 227 * 1024) << dim;
    const BackwardSm90Workspace at = workspace_of(problem, *config);
    EXPECT_GT(at.bytes, at.head_units);
  }
  const auto expect_most = [&](int dim, const std::vector<Feature>& features) {
    const std::string_view sentence =
        "cuda: sdpa_backward head_dim {0} (q, k) and {0} (v); in f32 the Hopper kernel takes at "
        "most {1}";
    EXPECT_TRUE(configure_backward_sm90(f32(dim, features)).is_ok()) << dim;
    EXPECT_EQ(refusal(f32(dim + 8, features)), fmt::format(fmt::runtime(sentence), dim + 8, dim));
  };

  for (Feature feature :
       {Feature::alibi, Feature::soft_cap, Feature::philox, Feature::deterministic})
    expect_most(256, {feature});
  expect_most(192, {Feature::boolean_mask});
  // What is made of scores takes the groups by gradient, at any head_dim.
  for (Feature feature :
       {Feature::alibi, Feature::soft_cap, Feature::boolean_mask, Feature::philox}) {
    const auto config = configure_backward_sm90(f32(64, {feature}));
    ASSERT_TRUE(config.is_ok()) << config.status().message();
    EXPECT_TRUE(config->by_gradient);
    EXPECT_EQ(config->tiled_operand, problem::kAbsent);
  }
  for (int dim : {96, 104, 128}) {
    const auto config = configure_backward_sm90(f32(dim, {Feature::boolean_mask}));
    ASSERT_TRUE(config.is_ok()) << config.status().message();
    EXPECT_EQ(config->few_registers, dim > 96);
  }
  EXPECT_FALSE(configure_backward_sm90(f32(128, {Feature::alibi, Feature::philox}))->few_registers);
  for (bool drops : {false, true}) {
    std::vector<Feature> features{Feature::bias};
    if (drops) features.push_back(Feature::philox);
    const auto config =
        configure_backward_sm90(without_gradients_of_loads(f32(64, std::move(features))));
    ASSERT_TRUE(config.is_ok()) << config.status().message();
    EXPECT_EQ(config->few_registers, drops);
  }
}

TEST(BackwardSm90Workspace, HoldsNoMapsOfPairs) {
  for (Feature feature : {Feature::lengths, Feature::ragged}) {
    const AttentionBackwardProblem problem =
        backward_of({.dtype = DataType::f32, .features = {feature}});
    const auto config = configure_backward_sm90(problem);
    ASSERT_TRUE(config.is_ok()) << config.status().message();
    EXPECT_TRUE(config->lengths);
    const BackwardSm90Workspace at = workspace_of(problem, *config);
    EXPECT_EQ(at.head_units, at.maps);
  }
}

AttentionBackwardProblem backward_with(ScoreOp function, bool of_distance, int dim,
                                       DataType dtype = DataType::bf16) {
  return backward_of({.dtype = dtype,
                      .qk_dim = dim,
                      .v_dim = dim,
                      .function = function,
                      .of_distance = of_distance});
}

TEST(BackwardSm90Config, TakesScoresThatCompileWithoutSpills) {
  EXPECT_EQ(refusal(backward_with(ScoreOp::sine, false, 64)),
            "cuda: the Hopper backward takes scores, with their derivatives, of up to 60 "
            "instructions");
  EXPECT_EQ(refusal(backward_with(ScoreOp::sine, false, 64, DataType::f32)), "taken");
  EXPECT_EQ(refusal(backward_with(ScoreOp::logarithm, false, 64)), "taken");
  EXPECT_EQ(refusal(backward_with(ScoreOp::logarithm, false, 128)),
            "cuda: the Hopper backward takes roots and error functions, and exponentials and "
            "logarithms of the dot product, up to head_dim 64");
  EXPECT_EQ(refusal(backward_with(ScoreOp::logarithm, true, 128)), "taken");
  EXPECT_EQ(refusal(backward_with(ScoreOp::square_root, true, 128)),
            refusal(backward_with(ScoreOp::logarithm, false, 128)));
}

// fmod of a score has a loop in it, a modulo of whole numbers has not.
TEST(BackwardSm90Config, TakesModulosOfPositionsOnly) {
  EXPECT_EQ(refusal(backward_with(ScoreOp::modulo, true, 128)), "taken");
  EXPECT_NE(refusal(backward_with(ScoreOp::modulo, false, 128)), "taken");
}

}  // namespace
}  // namespace heddle::engine::cuda
