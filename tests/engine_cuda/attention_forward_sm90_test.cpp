#include "engine/cuda/attention_forward_sm90.h"

#include <gtest/gtest.h>

#include "engine/cuda/attention_backward_sm90.h"
#include "engine/cuda/score_source.h"
#include "kernels/cases.h"

namespace heddle::engine::cuda {
namespace {

using problem::AttentionProblem;

// Dense BHSD bf16 tensors, q heads of one kv head.
AttentionProblem dense(int64_t batch, int64_t q_heads, int64_t kv_heads, int64_t length, int dim) {
  AttentionProblem problem;
  problem::AttentionStructure& structure = problem.structure;
  const auto add = [&](DataType dtype, int64_t heads, int64_t columns) {
    structure.operands.push_back({.dtype = dtype});
    problem.sizes.layouts.push_back(
        {.dims = {batch, heads, length, columns},
         .strides = {heads * length * columns, length * columns, columns, 1}});
    return static_cast<problem::OperandId>(structure.operands.size() - 1);
  };
  structure.q = add(DataType::bf16, q_heads, dim);
  structure.k = add(DataType::bf16, kv_heads, dim);
  structure.v = add(DataType::bf16, kv_heads, dim);
  structure.o = add(DataType::bf16, q_heads, dim);
  structure.qk_head_dim = structure.v_head_dim = dim;
  problem.sizes.batch = batch;
  problem.sizes.q_heads = q_heads;
  problem.sizes.k_heads = problem.sizes.v_heads = kv_heads;
  problem.sizes.q_length = problem.sizes.kv_length = length;
  problem.sizes.scale = 0.1;
  return problem;
}

void make_causal(AttentionProblem& problem) {
  problem.structure.bounds.push_back({.upper = true, .anchor = problem::Anchor::top_left});
  problem.sizes.bound_constants.push_back(1);
}

TEST(ForwardSm90Config, FitsSharedMemoryForEveryHeadDim) {
  for (int dim = 8; dim <= 256; dim += 8) {
    for (int64_t length : {512, 16384}) {
      const auto config = configure_forward_sm90(dense(1, 4, 4, length, dim));
      ASSERT_TRUE(config.is_ok()) << dim << ": " << config.status().message();
      EXPECT_LE(config->shared_bytes(), 227 * 1024) << dim;
      EXPECT_EQ(config->tile_n % 16, 0);
      EXPECT_FALSE(config->dynamic) << "a full mask needs no counter";
    }
  }
}

void takes_by_tiles_what_a_score_reads(int64_t length) {
  for (int qk = 8; qk <= 192; qk += 8) {
    for (int v : {8, 64, 72, 128, qk}) {
      for (const auto& features : {std::vector<Feature>{Feature::bias},
                                   {Feature::wide_bias},
                                   {Feature::boolean_mask},
                                   {Feature::bias, Feature::philox},
                                   {Feature::wide_bias, Feature::philox}}) {
        const auto config = configure_forward_sm90(
            forward_of({.qk_dim = qk, .v_dim = v, .features = features, .length = length}));
        if (qk > 128 && features.size() > 1) continue;  // refused
        ASSERT_TRUE(config.is_ok()) << qk << ", " << v << ": " << config.status().message();
        EXPECT_EQ(config->tiled_operand != problem::kAbsent, qk <= 128) << qk << ", " << v;
        EXPECT_LE(config->shared_bytes(), 227 * 1024) << qk << ", " << v;
      }
    }
  }
}

TEST(ForwardSm90Config, TakesByTilesWhatAScoreReadsInEveryCell) {
  for (int64_t length : {400, 784, 4096, 16384}) takes_by_tiles_what_a_score_reads(length);
  const AttentionProblem problem = forward_of({.features = {Feature::boolean_mask}});
  const auto config = configure_forward_sm90(problem);
  EXPECT_EQ(config->tiled, sm90::Tiled::booleans);
  std::vector<problem::OperandId> loads;
  forward_sm90_unit(problem.structure, problem::facts_of(problem), *config, loads);
  EXPECT_TRUE(loads.empty()) << "it comes by tiles alone";
  // Rows of 777 values do not start on 16 bytes.
  const auto odd = configure_forward_sm90(forward_of({.features = {Feature::bias}, .length = 777}));
  ASSERT_TRUE(odd.is_ok());
  EXPECT_EQ(odd->tiled_operand, problem::kAbsent);
}

TEST(ForwardSm90Config, LongRowsOfHeadDim128TakeThreeConsumers) {
  EXPECT_EQ(configure_forward_sm90(dense(1, 16, 16, 16384, 128))->consumers, 3);
  EXPECT_EQ(configure_forward_sm90(dense(32, 16, 16, 512, 128))->consumers, 2);
  AttentionProblem windowed = dense(1, 16, 16, 16384, 128);
  make_causal(windowed);
  EXPECT_EQ(configure_forward_sm90(windowed)->consumers, 3);
  windowed.structure.bounds.push_back({.upper = false, .anchor = problem::Anchor::top_left});
  windowed.sizes.bound_constants.push_back(-1023);
  const auto config = configure_forward_sm90(windowed);
  EXPECT_EQ(config->consumers, 2);
  EXPECT_TRUE(config->lower_varies && config->upper_varies);
}

TEST(ForwardSm90Config, ShortScoresOfLongRowsTakeThreeConsumers) {
  const auto consumers = [](std::vector<Feature> features, int dim, int64_t length) {
    return configure_forward_sm90(forward_of({.qk_dim = dim,
                                              .v_dim = dim,
                                              .features = std::move(features),
                                              .length = length}))
        ->consumers;
  };
  EXPECT_EQ(consumers({Feature::boolean_mask}, 64, 784), 3);
  EXPECT_EQ(consumers({Feature::boolean_mask, Feature::causal}, 64, 784), 2);
  EXPECT_EQ(consumers({Feature::boolean_mask, Feature::causal}, 64, 4096), 3);
  EXPECT_EQ(consumers({Feature::boolean_mask}, 128, 16384), 2);
  EXPECT_EQ(consumers({Feature::bias}, 128, 784), 3);
  EXPECT_EQ(consumers({Feature::soft_cap, Feature::causal}, 128, 16384), 3);
  EXPECT_EQ(consumers({Feature::soft_cap, Feature::window}, 64, 16384), 2);
  EXPECT_EQ(consumers({Feature::soft_cap, Feature::lengths}, 64, 16384), 2);
}

TEST(ForwardSm90Config, ShortCausalRowsOfHeadDim64TakeTwoConsumers) {
  AttentionProblem problem = dense(32, 32, 32, 512, 64);
  EXPECT_EQ(configure_forward_sm90(problem)->consumers, 3);
  make_causal(problem);
  EXPECT_EQ(configure_forward_sm90(problem)->consumers, 2);
  AttentionProblem longer = dense(8, 32, 32, 2048, 64);
  make_causal(longer);
  EXPECT_EQ(configure_forward_sm90(longer)->consumers, 3);
}

TEST(ForwardSm90Config, PlainCausalRowsOfWideHeadsVisitKeysUpwards) {
  AttentionProblem problem = dense(8, 8, 8, 2048, 256);
  EXPECT_FALSE(configure_forward_sm90(problem)->upwards) << "a full mask";
  make_causal(problem);
  const auto config = configure_forward_sm90(problem);
  EXPECT_TRUE(config->upwards);
  EXPECT_EQ(config->head_group, 22);
  AttentionProblem windowed = problem;
  windowed.structure.bounds.push_back({.upper = false, .anchor = problem::Anchor::top_left});
  windowed.sizes.bound_constants.push_back(-1023);
  EXPECT_FALSE(configure_forward_sm90(windowed)->upwards);
  AttentionProblem narrower = dense(8, 16, 16, 2048, 128);
  make_causal(narrower);
  EXPECT_FALSE(configure_forward_sm90(narrower)->upwards);
  EXPECT_EQ(configure_forward_sm90(narrower)->head_group, 44);
  AttentionProblem grouped = dense(8, 16, 4, 2048, 256);
  make_causal(grouped);
  EXPECT_FALSE(configure_forward_sm90(grouped)->upwards);
  EXPECT_EQ(configure_forward_sm90(grouped)->head_group, 128);  // all there are, of 256 allowed
  AttentionProblem longer = dense(2, 8, 8, 8192, 256);
  make_causal(longer);
  EXPECT_EQ(configure_forward_sm90(longer)->head_group, 16);  // all there are
}

TEST(ForwardSm90Config, CausalTilesAreDrawnInSectionsOfHeads) {
  AttentionProblem problem = dense(8, 32, 8, 2048, 128);
  make_causal(problem);
  const auto config = configure_forward_sm90(problem);
  EXPECT_TRUE(config->dynamic);
  EXPECT_EQ(config->head_group, 256);  // 64 key heads of 4 query heads each, of 256 there are
}

TEST(ForwardSm90Config, NegativeScaleGoesThroughScores) {
  AttentionProblem problem = dense(1, 2, 2, 128, 64);
  problem.sizes.scale = -0.1;
  const auto config = configure_forward_sm90(problem);
  EXPECT_FALSE(config->positive_scale);
  EXPECT_EQ(config->consumers, 2);
}

TEST(ForwardSm90Config, RefusesWhatTheCopyEngineCannotMove) {
  EXPECT_FALSE(configure_forward_sm90(dense(1, 2, 2, 128, 60)).is_ok());
  AttentionProblem odd_rows = dense(1, 2, 2, 128, 64);
  odd_rows.sizes.layouts[1].strides = {16896 * 2, 16896, 66, 1};  // rows of 66: 132 bytes
  const auto refused = configure_forward_sm90(odd_rows);
  ASSERT_FALSE(refused.is_ok());
  EXPECT_NE(refused.status().message().find("operand 1"), std::string::npos);
  AttentionProblem shared_rows = dense(2, 2, 2, 128, 64);
  shared_rows.sizes.layouts[1].strides = {0, 8192, 64, 1};  // one K for both batch entries
  EXPECT_FALSE(configure_forward_sm90(shared_rows).is_ok());
  AttentionProblem far_apart = dense(2, 2, 2, 128, 64);
  far_apart.sizes.layouts[1].strides[0] = (int64_t{1} << 39) - 8;
  EXPECT_TRUE(configure_forward_sm90(far_apart).is_ok());
  far_apart.sizes.layouts[1].strides[0] = int64_t{1} << 39;  // 2^40 bytes
  EXPECT_FALSE(configure_forward_sm90(far_apart).is_ok());
}

// Rows and diagonal bounds are added in 32 bits.
TEST(ForwardSm90Config, CountsUpTo2To30RowsAndKeys) {
  AttentionProblem longest = dense(1, 1, 1, (1 << 30) - 256, 8);
  make_causal(longest);
  EXPECT_TRUE(configure_forward_sm90(longest).is_ok());
  for (int64_t* length : {&longest.sizes.q_length, &longest.sizes.kv_length}) {
    ++*length;
    const auto refused = configure_forward_sm90(longest);
    ASSERT_FALSE(refused.is_ok());
    EXPECT_TRUE(refused.status().message().ends_with("the kernel counts up to 1073741568"))
        << refused.status().message();
    --*length;
  }
}

TEST(ForwardSm90Config, StagesRotationsWhereTheNextQComesEarlyAndOIsAsWide) {
  const auto more_with_rope = [](Case c) {
    const int64_t without = configure_forward_sm90(forward_of(c))->shared_bytes();
    c.features.push_back(Feature::rope_halves);
    return configure_forward_sm90(forward_of(c))->shared_bytes() - without;
  };
  constexpr int64_t kConsumer = 16 + 4 * 64;  // barriers, and a unit a row
  constexpr int64_t kRotated = 2 * 8;         // two of who rotates for two consumers
  EXPECT_EQ(more_with_rope({.qk_dim = 128, .v_dim = 128}), 2 * (kConsumer + kRotated));
  EXPECT_EQ(more_with_rope({.qk_dim = 128, .v_dim = 128, .length = 16384}), 3 * kConsumer);
  EXPECT_EQ(more_with_rope({.qk_dim = 64, .v_dim = 128}), 2 * (kConsumer + kRotated));
  EXPECT_EQ(more_with_rope({.qk_dim = 128, .v_dim = 64}), 0) << "rotations of 128 columns";
  EXPECT_EQ(more_with_rope({.features = {Feature::bias}}), 0) << "a score";
  EXPECT_EQ(more_with_rope({.qk_dim = 192, .v_dim = 128}), 0) << "O where Q was";
  EXPECT_EQ(more_with_rope({.qk_dim = 256, .v_dim = 256}), 0) << "half of O at a time";
}

TEST(ForwardSm90Config, RotatesKeysBesideQueriesIntoAnOperand) {
  const AttentionProblem problem = forward_of({.features = {Feature::rope_halves}});
  const problem::Rope& rope = *problem.structure.k_rope;
  ASSERT_TRUE(configure_forward_sm90(problem).is_ok());
  const AttentionProblem attention = with_rotated_keys(problem);
  EXPECT_FALSE(attention.structure.k_rope);
  EXPECT_EQ(attention.structure.k, rope.rotated);
  const auto keys = key_rotation(problem);
  ASSERT_TRUE(keys);
  EXPECT_EQ(keys->rope.structure.x, problem.structure.k);
  EXPECT_EQ(keys->rope.structure.y, rope.rotated);
  EXPECT_FALSE(key_rotation(attention));

  constexpr const char* kRefusal =
      "cuda: the Hopper kernel's plan rotates keys beside queries, into an operand";
  AttentionProblem without = problem;
  without.structure.q_rope.reset();
  EXPECT_EQ(configure_forward_sm90(without).status().message(), kRefusal);
  without = problem;
  without.structure.k_rope->rotated = problem::kAbsent;
  EXPECT_EQ(configure_forward_sm90(without).status().message(), kRefusal);
  without = problem;
  without.structure.type(without.structure.k_rope->angles).dtype = DataType::f64;
  EXPECT_EQ(configure_forward_sm90(without).status().message(),
            "cuda: rope angles is f64, but the kernel takes f32");
}

TEST(ForwardSm90Config, StagedRotationsOfTwoConsumersHaveAWarpGroupOfTheirOwn) {
  const auto threads = [](const Case& c) {
    return configure_forward_sm90(forward_of(c))->threads();
  };
  EXPECT_EQ(threads({.qk_dim = 128, .v_dim = 128}), 3 * 128);
  EXPECT_EQ(threads({.qk_dim = 128, .v_dim = 128, .features = {Feature::rope_halves}}), 4 * 128);
  EXPECT_EQ(
      threads({.qk_dim = 128, .v_dim = 128, .features = {Feature::rope_halves}, .length = 16384}),
      4 * 128)
      << "three consumers";
  EXPECT_EQ(threads({.qk_dim = 192, .v_dim = 128, .features = {Feature::rope_halves}}), 3 * 128)
      << "nothing is staged";
}

TEST(ForwardSm90Config, StagesAsManyRotationsAsWarpsTurnAtATime) {
  // 36 pairs a row, of which warps turn 40.
  const auto shared_bytes = [](int rope_dim) {
    AttentionProblem problem =
        forward_of({.qk_dim = 96, .v_dim = 40, .features = {Feature::rope_interleaved}});
    problem.structure.q_rope->rope_dim = rope_dim;
    return configure_forward_sm90(problem)->shared_bytes();
  };
  EXPECT_EQ(shared_bytes(64) - shared_bytes(72), 2 * (32 + 4 * 64)) << "32 pairs fit where O is";
  EXPECT_EQ(shared_bytes(72), shared_bytes(88));
}

TEST(ForwardSm90Config, RotatesNoQueriesOfF16) {
  EXPECT_TRUE(configure_forward_sm90(forward_of({.features = {Feature::rope_halves}})).is_ok());
  EXPECT_TRUE(configure_forward_sm90(forward_of({.dtype = DataType::f16})).is_ok());
  const auto refused = configure_forward_sm90(
      forward_of({.dtype = DataType::f16, .features = {Feature::rope_halves}}));
  ASSERT_FALSE(refused.is_ok());
  EXPECT_NE(refused.status().message().find("too coarse"), std::string::npos);
}

TEST(ForwardSm90Config, RefusesPositionsInHostMemoryAndTooMany) {
  AttentionProblem problem = forward_of({.features = {Feature::rope_interleaved}});
  ASSERT_TRUE(configure_forward_sm90(problem).is_ok());
  const auto positions = static_cast<size_t>(problem.structure.q_rope->positions);
  problem.structure.operands[positions].on_host = true;
  EXPECT_EQ(configure_forward_sm90(problem).status().message(),
            "cuda: the Hopper kernel takes positions in device memory");
  problem.structure.operands[positions].on_host = false;
  problem.sizes.layouts[positions].dims[0] = int64_t{1} << 20;
  EXPECT_EQ(configure_forward_sm90(problem).status().message(),
            "cuda: rotations of 1048576 x 512 rows, in groups of 64 rows; the Hopper kernel takes "
            "16777216 rows");
  problem.sizes.q_length = 1;  // a group each: 2^26 rows, a warp each
  EXPECT_FALSE(configure_forward_sm90(problem).is_ok());
  problem.sizes.layouts[positions].dims[0] = int64_t{1} << 18;
  EXPECT_TRUE(configure_forward_sm90(problem).is_ok());
}

TEST(ForwardSm90Config, RefusesDropoutOrLengthsBesideABiasOfWideHeads) {
  for (auto [beside, widest] : {std::pair{Feature::philox, 128}, {Feature::lengths, 192}}) {
    for (int dim : {128, 192, 256}) {
      const auto config = configure_forward_sm90(
          forward_of({.qk_dim = dim, .v_dim = dim, .features = {Feature::bias, beside}}));
      EXPECT_EQ(config.status().code(), dim <= widest ? Code::ok : Code::graph_not_supported);
    }
  }
}

// Tiles of as many keys as without dropout find registers beside Philox, but not beside scores that
// are read or evaluated, nor beside Threefry.
TEST(ForwardSm90Config, PhiloxAloneHasTheWidestTilesUpTo64) {
  const auto tile_n = [](std::vector<Feature> features) {
    return configure_forward_sm90(
               forward_of({.qk_dim = 64, .v_dim = 64, .features = std::move(features)}))
        ->tile_n;
  };
  EXPECT_EQ(tile_n({Feature::causal, Feature::philox}), 128);
  EXPECT_EQ(tile_n({Feature::soft_cap, Feature::philox}), 96);
  EXPECT_EQ(tile_n({Feature::bias, Feature::philox}), 96);
  EXPECT_EQ(tile_n({Feature::threefry}), 96);
}

TEST(ForwardSm90Config, SaysWhatTheStructureHas) {
  AttentionProblem problem = dense(1, 2, 2, 128, 64);
  make_causal(problem);
  const auto config = configure_forward_sm90(problem);
  EXPECT_TRUE(config->upper_varies);
  EXPECT_FALSE(config->lower_varies || config->sink || config->lengths || config->has_score);
  std::vector<problem::OperandId> loads;
  forward_sm90_unit(problem.structure, problem::facts_of(problem), *config, loads);
  EXPECT_TRUE(loads.empty());
}

// By -1e30 in each of its cells, or once for all of them.
TEST(ScoreSource, ABiasMayHideWholeRowsHoweverItIsBroadcast) {
  const auto has_finite_mask_rows = [](const AttentionProblem& problem) {
    const problem::AttentionFacts facts = problem::facts_of(problem);
    return may_have_finite_mask_rows(problem.structure.score, problem.structure, &facts);
  };
  AttentionProblem problem = forward_of({.features = {Feature::bias}});
  problem::OperandId bias = problem::kAbsent;
  for (const problem::ScoreNode& node : problem.structure.score.nodes) {
    if (node.op == problem::ScoreOp::load) bias = node.operand;
  }
  ASSERT_NE(bias, problem::kAbsent);
  Dims& dims = problem.sizes.layouts[static_cast<size_t>(bias)].dims;
  EXPECT_TRUE(has_finite_mask_rows(problem));
  dims[3] = 1;
  EXPECT_TRUE(has_finite_mask_rows(problem)) << "a number a row";
  dims[2] = 1;
  EXPECT_TRUE(has_finite_mask_rows(problem)) << "a number a head";
  problem.structure.score.nodes[static_cast<size_t>(problem.structure.score.root)].op =
      problem::ScoreOp::multiply;
  EXPECT_FALSE(has_finite_mask_rows(problem)) << "it only scales";
}

TEST(ScoreSource, HidesAloneWhereItSelectsOfTheDotAndMinusInfinity) {
  using enum problem::ScoreOp;
  // 0 dot, 1 -inf, 2 column, 3 column < -inf, 4 dot < column, 5 -1e9
  const std::vector<problem::ScoreNode> leaves = {
      {.op = dot},
      {.op = constant, .value = -INFINITY},
      {.op = column},
      {.op = less, .a = 2, .b = 1},
      {.op = less, .a = 0, .b = 2},
      {.op = constant, .value = -1e9},
  };
  const auto hides = [&](std::vector<problem::ScoreNode> more) {
    problem::ScoreExpression expression{leaves, 0};
    expression.nodes.insert(expression.nodes.end(), more.begin(), more.end());
    expression.root = static_cast<int32_t>(expression.nodes.size()) - 1;
    return only_hides(expression);
  };
  EXPECT_TRUE(only_hides({}));
  EXPECT_TRUE(hides({{.op = select, .a = 3, .b = 0, .c = 1}}));
  EXPECT_TRUE(
      hides({{.op = select, .a = 3, .b = 1, .c = 0}, {.op = select, .a = 3, .b = 6, .c = 1}}));
  EXPECT_FALSE(hides({{.op = select, .a = 4, .b = 0, .c = 1}})) << "of the dot's own size";
  EXPECT_FALSE(hides({{.op = select, .a = 3, .b = 0, .c = 5}})) << "a number has a unit";
  EXPECT_FALSE(hides({{.op = select, .a = 3, .b = 1, .c = 1}})) << "there is no dot";
  EXPECT_FALSE(hides({{.op = add, .a = 0, .b = 2}}));
}

// A share's columns are within the plane's, whose boxes end at 64: beyond them lies the other
// plane.
void expect_whole_shares(const ForwardSm90Config& config, int columns) {
  const int share = config.share_of(columns), end = config.shares() * share;
  EXPECT_EQ(share % 16, 0);
  EXPECT_GE(end, columns);
  EXPECT_LE(end, (columns + 63) / 64 * 64);
}

TEST(ForwardSm90Config, TakesF32AsPairsUpTo512Columns) {
  for (int qk = 8; qk <= 512; qk += 8) {
    for (int v : {8, 64, 128, 136, 256, 264, 512, qk}) {
      SCOPED_TRACE(fmt::format("{}, {}", qk, v));
      AttentionProblem problem = forward_of(
          {.dtype = DataType::f32, .qk_dim = qk, .v_dim = v, .features = {Feature::output_alone}});
      const auto config = configure_forward_sm90(problem);
      ASSERT_TRUE(config.is_ok()) << config.status().message();
      EXPECT_EQ(config->planes, 2);
      EXPECT_LE(config->shared_bytes(), 227 * 1024);
      EXPECT_LE(config->part_columns(), 128) << "of O, in registers";
      EXPECT_EQ(config->ranks > 1, std::max(qk, v) > 256);
      if (!config->shares_dots()) continue;
      expect_whole_shares(*config, qk);
      expect_whole_shares(*config, v);
    }
  }
  const AttentionProblem wider = forward_of(
      {.dtype = DataType::f32, .qk_dim = 520, .v_dim = 512, .features = {Feature::output_alone}});
  EXPECT_EQ(
      configure_forward_sm90(wider).status().message(),
      "cuda: sdpa head_dim 520 (q, k) and 512 (v); in f32 the Hopper kernel takes at most 512");
}

// Those of wider heads are for a backward that adds scores up in another order.
// Another kind of kernel adds scores up in another order.
TEST(ForwardSm90Config, WritesStatisticsOfF32WhereTheBackwardIsOfItsKind) {
  const auto expect_most = [](int most, std::vector<Feature> features) {
    for (int dim : {most, most + 8}) {
      const Case one{.dtype = DataType::f32, .qk_dim = dim, .v_dim = dim, .features = features};
      EXPECT_EQ(configure_forward_sm90(forward_of(one)).is_ok(), dim == most);
      EXPECT_EQ(configure_backward_sm90(backward_of(one)).is_ok(), dim == most);
    }
  };
  for (Feature feature : {Feature::causal, Feature::statistics}) expect_most(512, {feature});
  expect_most(256, {Feature::causal, Feature::soft_cap});
  expect_most(256, {Feature::philox, Feature::statistics});
  for (Feature feature : {Feature::boolean_mask, Feature::threefry}) expect_most(192, {feature});
  EXPECT_EQ(
      configure_forward_sm90(
          forward_of(
              {.dtype = DataType::f32, .qk_dim = 264, .v_dim = 264, .features = {Feature::alibi}}))
          .status()
          .message(),
      "cuda: sdpa head_dim 264 (q, k) and 264 (v); in f32 the Hopper kernel writes "
      "statistics of at most 256 with such scores");
}

TEST(ForwardSm90Config, LeavesFewKeysOfF32ToTheGeneralKernelWherePairsTakeLonger) {
  const auto of = [](int dim, int64_t length) {
    return configure_forward_sm90(forward_of({.dtype = DataType::f32,
                                              .qk_dim = dim,
                                              .v_dim = dim,
                                              .features = {Feature::output_alone},
                                              .length = length}));
  };
  for (int dim : {136, 256}) {
    EXPECT_FALSE(of(dim, 1).is_ok());
    EXPECT_FALSE(of(dim, 64).is_ok());
    EXPECT_TRUE(of(dim, 65).is_ok());
  }
  EXPECT_TRUE(of(128, 64).is_ok());
  EXPECT_TRUE(of(264, 64).is_ok());
}

TEST(ForwardSm90Config, PairsOfF32EndWithTheirSequencesAsMapsOf16BitsDo) {
  for (Feature feature : {Feature::lengths, Feature::ragged}) {
    for (DataType dtype : {DataType::f32, DataType::f16}) {
      const auto config = configure_forward_sm90(
          forward_of({.dtype = dtype, .features = {feature}, .architecture = "sm_90a"}));
      ASSERT_TRUE(config.is_ok()) << config.status().message();
      EXPECT_TRUE(config->lengths);
      EXPECT_EQ(config->sequence_maps(), dtype == DataType::f16);
      EXPECT_TRUE(config->dynamic) << "tiles past an end take no time";
    }
  }
}

}  // namespace
}  // namespace heddle::engine::cuda
