// What fuse() makes of graphs: which nodes become one problem, what it writes, and its masks.
#include <gtest/gtest.h>

#include <cmath>

#include "fusion/key_bounds.h"
#include "fusion/schedule.h"
#include "graph/validate.h"
#include "problem/score_builder.h"
#include "problem/score_evaluate.h"
#include "reference/score_mod.h"
#include "support/attention_programs.h"
#include "support/part.h"
#include "support/score_mods.h"

namespace heddle::testing {
namespace {

using graph::kNone;
using graph::TensorId;
using problem::Anchor;
using problem::kAbsent;
using problem::ScoreBuilder;
using problem::ScoreExpression;
using problem::ScoreOp;

fusion::Schedule fused(graph::Graph& graph) {
  const Status valid = graph::validate(graph);
  EXPECT_TRUE(valid.is_ok()) << valid.message();
  return fusion::fuse(graph).value();
}

/// rope(Q), rope(K) -> sdpa on small tensors.
struct RopedAttention {
  Program program;
  TensorId q, k, v, freqs, q_rotated, k_rotated, o;

  RopedAttention() {
    graph::Graph& g = program.graph;
    g.io_dtype = DataType::bf16;
    g.intermediate_dtype = DataType::f32;
    const auto add = [&](const char* name) {
      return program.add(name, DataType::bf16, {1, 2, 8, 16});
    };
    q = add("q"), k = add("k"), v = add("v"), q_rotated = add("q_rotated");
    k_rotated = add("k_rotated"), o = add("o");
    freqs = program.add("freqs", DataType::f32, {8, 1, 1, 16});
    g[q_rotated].is_virtual = g[k_rotated].is_virtual = true;
    g.nodes.push_back({"rope_q", graph::Rope{.x = q, .freqs = freqs, .y = q_rotated}});
    g.nodes.push_back(
        {"rope_k", graph::Rope{.x = k, .freqs = freqs, .y = k_rotated, .output_scale = 2}});
    g.nodes.push_back({"sdpa", graph::Sdpa{.q = q_rotated, .k = k_rotated, .v = v, .o = o}});
  }
};

TEST(Fuse, RopeOfQAndKJoinTheAttention) {
  RopedAttention a;
  const fusion::Schedule schedule = fused(a.program.graph);
  ASSERT_EQ(schedule.steps.size(), 1u);
  EXPECT_EQ(schedule.steps[0].nodes, (std::vector<std::string>{"rope_q", "rope_k", "sdpa"}));
  EXPECT_TRUE(schedule.intermediates.empty());
  const auto& problem = std::get<problem::AttentionProblem>(schedule.steps[0].problem);
  const auto& s = problem.structure;
  ASSERT_TRUE(s.q_rope && s.k_rope);
  EXPECT_EQ(s.q_rope->rotated, kAbsent);
  EXPECT_EQ(s.q_rope->rope_dim, 16);
  EXPECT_EQ(problem.sizes.k_rope_scale, 2);
  EXPECT_EQ(schedule.steps[0].tensors[s.q], a.q);
  EXPECT_EQ(schedule.steps[0].tensors[s.k_rope->angles], a.freqs);
}

TEST(Fuse, ANodeWithoutANameIsCalledByItsOp) {
  RopedAttention a;
  for (graph::Node& node : a.program.graph.nodes) node.name.clear();
  EXPECT_EQ(fused(a.program.graph).steps.at(0).nodes,
            (std::vector<std::string>{"rope", "rope", "sdpa"}));
}

TEST(Fuse, RotatedTensorsAreWrittenOnlyIfSomeoneReadsThem) {
  RopedAttention a;
  a.program.graph[a.q_rotated].is_virtual = false;
  const fusion::Schedule schedule = fused(a.program.graph);
  const auto& s = std::get<problem::AttentionProblem>(schedule.steps.at(0).problem).structure;
  ASSERT_NE(s.q_rope->rotated, kAbsent);
  EXPECT_EQ(schedule.steps[0].tensors[s.q_rope->rotated], a.q_rotated);
  EXPECT_EQ(s.k_rope->rotated, kAbsent);
}

TEST(Fuse, ASecondReaderMakesTheRotatedTensorAnIntermediate) {
  RopedAttention a;
  const TensorId o2 = a.program.add("o2", DataType::bf16, {1, 2, 8, 16});
  a.program.graph.nodes.push_back(
      {"again", graph::Sdpa{.q = a.q_rotated, .k = a.k, .v = a.v, .o = o2}});
  const fusion::Schedule schedule = fused(a.program.graph);
  ASSERT_EQ(schedule.steps.size(), 2u);
  EXPECT_EQ(schedule.intermediates, std::vector<TensorId>{a.q_rotated});
  const auto& first = std::get<problem::AttentionProblem>(schedule.steps[0].problem).structure;
  const auto& second = std::get<problem::AttentionProblem>(schedule.steps[1].problem).structure;
  EXPECT_NE(first.q_rope->rotated, kAbsent);
  EXPECT_FALSE(second.q_rope);
}

TEST(Fuse, ARotationThatWidensStandsAlone) {
  RopedAttention a;
  graph::Graph& g = a.program.graph;
  g[a.q_rotated].dtype = g[a.k_rotated].dtype = g[a.v].dtype = DataType::f32;
  g[a.o].dtype = DataType::f32;
  const fusion::Schedule schedule = fused(g);
  ASSERT_EQ(schedule.steps.size(), 3u);
  EXPECT_TRUE(std::holds_alternative<problem::RopeProblem>(schedule.steps[0].problem));
  EXPECT_EQ(schedule.intermediates.size(), 2u);
}

TEST(Fuse, OneRotationReadTwiceByOneAttentionStandsAlone) {
  RopedAttention a;
  std::get<graph::Sdpa>(a.program.graph.nodes[2].op).v = a.k_rotated;
  const fusion::Schedule schedule = fused(a.program.graph);
  ASSERT_EQ(schedule.steps.size(), 2u);
  EXPECT_EQ(schedule.steps[0].nodes, std::vector<std::string>{"rope_k"});
}

TEST(Fuse, AnAppendAndItsAttentionAreTwoSteps) {
  Program program;
  graph::Graph& g = program.graph;
  g.io_dtype = DataType::bf16, g.intermediate_dtype = DataType::f32;
  graph::CacheAppend append;
  append.q = program.add("qkv", DataType::bf16, {2, 8, 1, 16});
  append.past_k = program.add("past_k", DataType::i8, {2, 2, 9, 16});
  append.past_v = program.add("past_v", DataType::i8, {2, 2, 9, 16});
  append.k_scale = program.add("k_scale", DataType::f32, {1, 1, 1, 16});
  append.v_scale = program.add("v_scale", DataType::f32, {1, 2, 1, 1});
  append.seq_len_kv = program.add("last", DataType::i32, {2, 1, 1, 1});
  append.seq_len_kv_offset = 1;
  append.q_out = program.add("q", DataType::bf16, {2, 4, 1, 16});
  append.present_k = program.add("present_k", DataType::i8, {2, 2, 9, 16});
  append.present_v = program.add("present_v", DataType::i8, {2, 2, 9, 16});
  append.lengths_q = program.add("lengths_q", DataType::i32, {2, 1, 1, 1});
  append.lengths_kv = program.add("lengths_kv", DataType::i32, {2, 1, 1, 1});
  append.ring = true;
  graph::Sdpa sdpa{.q = append.q_out, .k = append.present_k, .v = append.present_v};
  sdpa.k_scale = append.k_scale, sdpa.v_scale = append.v_scale;
  sdpa.ring_kv = true, sdpa.max_seq_len_kv = 100;
  sdpa.o = program.add("o", DataType::bf16, {2, 4, 1, 16});
  sdpa.attention.padding_mask = true;
  sdpa.attention.seq_len_q = append.lengths_q, sdpa.attention.seq_len_kv = append.lengths_kv;
  for (TensorId id : {append.q_out, append.lengths_q, append.lengths_kv}) g[id].is_virtual = true;
  g.nodes = {{"append", append}, {"attention", sdpa}};
  const fusion::Schedule schedule = fused(g);
  ASSERT_EQ(schedule.steps.size(), 2u);
  EXPECT_EQ(schedule.intermediates,
            (std::vector<TensorId>{append.q_out, append.lengths_q, append.lengths_kv}));
  using Per = problem::Scales::Per;
  const auto& first = std::get<problem::CacheAppendProblem>(schedule.steps[0].problem);
  EXPECT_TRUE(first.structure.is_packed());
  EXPECT_EQ(first.sizes.q_heads, 4);
  EXPECT_EQ(first.sizes.kv_heads, 2);
  EXPECT_EQ(first.sizes.total_offset, 1);
  EXPECT_EQ(first.structure.type(first.structure.k_cache).scales.per, Per::channel);
  const auto& second = std::get<problem::AttentionProblem>(schedule.steps[1].problem);
  EXPECT_EQ(second.sizes.kv_length, 100);
  EXPECT_TRUE(second.structure.type(second.structure.k).storage.is_ring());
  EXPECT_EQ(second.structure.type(second.structure.v).scales.per, Per::head);
  EXPECT_EQ(second.structure.bounds,
            (std::vector<problem::KeyBound>{{false, Anchor::kv_end}, {false, Anchor::kv_end}}));
  EXPECT_EQ(second.sizes.bound_constants, (std::vector<int64_t>{-9, -9}));
}

/// x, b [2,3,4,5] and bias [1,3,1,1].
struct PointwiseOps {
  Program program;
  TensorId x, b, bias;

  PointwiseOps() {
    program.graph.io_dtype = program.graph.intermediate_dtype = DataType::f32;
    x = real("x"), b = real("b"), bias = program.add("bias", DataType::f32, {1, 3, 1, 1});
  }
  TensorId real(const char* name) { return program.add(name, DataType::f32, {2, 3, 4, 5}); }
  TensorId inner(const char* name) {
    return program.graph.add({.name = name, .dtype = DataType::f16, .is_virtual = true});
  }
  TensorId add(TensorId y, graph::PointwiseMode mode, TensorId a, TensorId b = kNone) {
    program.graph.nodes.push_back(
        {program.graph[y].name, graph::PointwiseNode{.mode = mode, .a = a, .b = b, .y = y}});
    return y;
  }
};

using Mode = graph::PointwiseMode;

TEST(Fuse, AChainOfPointwiseOpsIsOneStep) {
  PointwiseOps ops;
  const TensorId sum = ops.add(ops.inner("sum"), Mode::add, ops.x, ops.bias);
  const TensorId gate = ops.add(ops.inner("gate"), Mode::sigmoid_fwd, sum);
  const TensorId y = ops.add(ops.real("y"), Mode::mul, sum, gate);
  const fusion::Schedule schedule = fused(ops.program.graph);
  ASSERT_EQ(schedule.steps.size(), 1u);
  EXPECT_TRUE(schedule.intermediates.empty());
  EXPECT_EQ(schedule.steps[0].tensors, (std::vector<TensorId>{ops.x, ops.bias, y}));
  const auto& problem = std::get<problem::PointwiseProblem>(schedule.steps[0].problem);
  ASSERT_EQ(problem.structure.nodes.size(), 5u);  // the sum is made once
  EXPECT_EQ(problem.structure.nodes[4].op, ScoreOp::multiply);
  EXPECT_EQ(problem.structure.nodes[4].a, problem.structure.nodes[3].a);
}

TEST(Fuse, WhatReadsAPointwiseResultInMemoryIsAStepOfItsOwn) {
  PointwiseOps ops;
  const TensorId sum = ops.add(ops.real("sum"), Mode::add, ops.x, ops.b);
  ops.add(ops.real("y"), Mode::exp, sum);
  EXPECT_EQ(fused(ops.program.graph).steps.size(), 2u);
}

TEST(Fuse, PointwiseResultsThatReadTheSameAreOneStep) {
  PointwiseOps ops;
  ops.add(ops.real("sum"), Mode::add, ops.x, ops.b);
  ops.add(ops.real("difference"), Mode::sub, ops.x, ops.b);
  ops.add(ops.program.add("small", DataType::f32, {1, 3, 1, 1}), Mode::exp, ops.bias);
  const fusion::Schedule schedule = fused(ops.program.graph);
  ASSERT_EQ(schedule.steps.size(), 2u);
  EXPECT_EQ(schedule.steps[0].nodes, (std::vector<std::string>{"sum", "difference"}));
}

TEST(Fuse, APointwiseResultIsNotMadeBeforeWhatItReads) {
  PointwiseOps ops;
  ops.add(ops.real("sum"), Mode::add, ops.x, ops.b);
  graph::RmsNorm norm{.x = ops.x, .scale = ops.program.add("scale", DataType::f32, {1, 1, 1, 5})};
  norm.epsilon = ops.program.add("epsilon", DataType::f32, {1, 1, 1, 1});
  norm.y = ops.inner("normed");
  ops.program.graph.nodes.push_back({"norm", norm});
  ops.add(ops.real("y"), Mode::mul, norm.y, ops.x);
  const fusion::Schedule schedule = fused(ops.program.graph);
  ASSERT_EQ(schedule.steps.size(), 3u);
  EXPECT_EQ(schedule.intermediates, std::vector<TensorId>{norm.y});
  EXPECT_EQ(schedule.steps[2].nodes, std::vector<std::string>{"y"});
}

TEST(Fuse, AnIndexAlongADimThatIsBroadcastIs0) {
  PointwiseOps ops;
  const TensorId index = ops.inner("index");
  ops.program.graph.nodes.push_back(
      {"index",
       graph::PointwiseNode{.mode = Mode::gen_index, .a = ops.bias, .y = index, .axis = 3}});
  ops.add(ops.real("y"), Mode::add, ops.x, index);
  const fusion::Schedule schedule = fused(ops.program.graph);
  const auto& problem = std::get<problem::PointwiseProblem>(schedule.steps[0].problem);
  EXPECT_EQ(problem.structure.nodes[1].op, ScoreOp::constant);
}

TEST(Fuse, AddedZerosMakeAZeroOfMinusZero) {
  PointwiseOps ops;
  const TensorId zero = ops.program.add("zero", DataType::f32, {1, 1, 1, 1});
  ops.program.graph[zero].constant = 0;
  ops.add(ops.real("y"), Mode::add, ops.x, zero);
  const fusion::Schedule schedule = fused(ops.program.graph);
  const auto& problem = std::get<problem::PointwiseProblem>(schedule.steps[0].problem);
  EXPECT_EQ(problem.structure.nodes.back().op, ScoreOp::add);
}

TEST(Fuse, StridesOfDimsOf1AreZero) {
  RopedAttention a;
  a.program.graph[a.q].strides[0] = 12345;
  const fusion::Schedule schedule = fused(a.program.graph);
  const auto& problem = std::get<problem::AttentionProblem>(schedule.steps[0].problem);
  EXPECT_EQ(problem.sizes.layouts[problem.structure.q].strides[0], 0);
}

// Where a ragged tensor ends is data, and an intermediate's memory is measured before there is any.
TEST(Fuse, ARaggedIntermediateIsRefused) {
  for (const bool is_virtual : {false, true}) {
    RopedAttention a;
    graph::Graph& g = a.program.graph;
    const TensorId offsets = a.program.add("offsets", DataType::i32, {2, 1, 1, 1});
    const TensorId lengths = a.program.add("lengths", DataType::i32, {1, 1, 1, 1});
    g[a.q_rotated].ragged_offset = offsets;  // beside a dense Q: no part of the attention
    g[a.q_rotated].is_virtual = is_virtual;
    auto& attention = std::get<graph::Sdpa>(g.nodes.back().op).attention;
    attention.padding_mask = true;
    attention.seq_len_q = attention.seq_len_kv = lengths;
    const Status valid = graph::validate(g);
    ASSERT_TRUE(valid.is_ok()) << valid.message();
    const auto schedule = fusion::fuse(g);
    ASSERT_EQ(schedule.is_ok(), !is_virtual);
    if (is_virtual)
      EXPECT_NE(schedule.status().message().find("q_rotated"), std::string::npos);
    else
      EXPECT_EQ(schedule->steps.size(), 2u);
  }
}

TEST(Fuse, RopeBackwardsJoinTheAttentionBackward) {
  int joined = 0;
  for (uint64_t seed = 0; seed < 200; ++seed) {
    Random random(seed);
    AttentionOptions options;
    options.rope = 1;
    options.ragged = 0;
    Program program = random_sdpa_backward(random, options);
    const fusion::Schedule schedule = fused(program.graph);
    ASSERT_EQ(schedule.steps.size(), 1u) << seed;
    ASSERT_TRUE(schedule.intermediates.empty()) << seed;
    const auto& problem = std::get<problem::AttentionBackwardProblem>(schedule.steps[0].problem);
    joined += problem.structure.d_q_rope.has_value() || problem.structure.d_k_rope.has_value();
  }
  EXPECT_GT(joined, 150);
}

TEST(Fuse, ABackwardIsGivenStatsOrMaximumAndSum) {
  for (const double chance : {0.0, 1.0}) {
    Random random(1);
    AttentionOptions options;
    options.max_and_sum = chance;
    Program program = random_sdpa_backward(random, options);
    const fusion::Schedule schedule = fused(program.graph);
    const auto& problem = std::get<problem::AttentionBackwardProblem>(schedule.steps[0].problem);
    const problem::AttentionStructure& forward = problem.structure.forward;
    const auto& op = std::get<graph::SdpaBackward>(program.graph.nodes[0].op);
    for (const auto& [operand, tensor] : {std::pair{forward.stats, op.stats},
                                          {forward.max, op.max},
                                          {forward.sum_exp, op.sum_exp}}) {
      ASSERT_EQ(operand == kAbsent, tensor == kNone);
      if (operand != kAbsent) {
        EXPECT_EQ(schedule.steps[0].tensors[operand], tensor);
      }
    }
    EXPECT_EQ(forward.max != kAbsent, chance == 1);
  }
}

// The problem's score and its derivative mean, cell by cell, what the graph's modifier does.
TEST(Fuse, ScoreModifiersKeepTheirMeaningAndDerivative) {
  for (uint64_t seed = 0; seed < 2000; ++seed) {
    if (!part().has(seed)) continue;
    Random random(seed);
    AttentionOptions options;
    options.dtypes = {DataType::f32};
    options.padding = options.log2_input = options.bias = options.ragged = 0;
    options.score_mod = 1;
    Program program = random_sdpa_backward(random, options);
    const fusion::Schedule schedule = fused(program.graph);
    const auto& problem = std::get<problem::AttentionBackwardProblem>(schedule.steps[0].problem);
    const auto& op = std::get<graph::SdpaBackward>(program.graph.nodes[0].op);
    const reference::Buffers buffers = program.buffers();
    const reference::Values values(program.graph, buffers, {});
    const auto& sizes = problem.sizes;
    for (int trial = 0; trial < 20; ++trial) {
      const reference::Cell cell{
          random.integer(0, sizes.batch - 1), random.integer(0, sizes.q_heads - 1),
          random.integer(0, sizes.q_length - 1), random.integer(0, sizes.kv_length - 1)};
      problem::ScoreLeaves leaves;
      leaves.dot = random.normal(), leaves.gradient = random.normal();
      leaves.batch = cell.b, leaves.head = cell.h, leaves.row = cell.i, leaves.column = cell.j;
      leaves.load = [&](problem::OperandId id) {
        return values.read(schedule.steps[0].tensors[id], cell.b, cell.h, cell.i, cell.j);
      };
      const auto& forward = problem.structure.forward;
      const problem::KeyInterval keys = problem::visible_keys(
          forward.bounds, sizes.bound_constants, cell.i, sizes.q_length, sizes.kv_length);
      const bool is_visible = keys.lo <= cell.j && cell.j < keys.hi;
      const double expected =
          reference::modified_score(*op.attention.score_mod, leaves.dot, cell, values);
      const double actual = is_visible ? problem::evaluate(forward.score, leaves) : -INFINITY;
      ASSERT_TRUE(actual == expected || std::fabs(actual - expected) < 1e-12) << seed;
      if (!is_visible) continue;
      const auto& mod = *op.attention.score_mod;
      const double slope =
          op.score_mod_bprop
              ? reference::given_score_gradient(*op.score_mod_bprop, &mod, leaves.dot,
                                                leaves.gradient, cell, values)
              : reference::modified_score_gradient(mod, mod.score_in, leaves.dot, leaves.gradient,
                                                   cell, values);
      ASSERT_NEAR(problem::evaluate(problem.structure.d_dot, leaves), slope, 1e-12) << seed;
    }
  }
}

/// select(keep, dot, -inf) or, with `masked`, select(keep, masked, dot).
ScoreExpression masked_dot(ScoreBuilder& b, ScoreBuilder::Node keep, double masked = -INFINITY) {
  return b.expression(b.apply(ScoreOp::select, keep, b.leaf(ScoreOp::dot), b.constant(masked)));
}

TEST(KeyBounds, DiagonalBoundsFollowTheContract) {
  graph::AttentionAttributes a;
  for (auto alignment :
       {graph::DiagonalAlignment::top_left, graph::DiagonalAlignment::bottom_right}) {
    for (int64_t left = 1; left < 5; ++left) {
      for (int64_t right = 0; right < 4; ++right) {
        a.diagonal_alignment = alignment, a.left_bound = left, a.right_bound = right;
        const fusion::Bounds bounds = fusion::diagonal_bounds(a);
        const int64_t q_length = 6, kv_length = 9;
        const int64_t off =
            alignment == graph::DiagonalAlignment::bottom_right ? kv_length - q_length : 0;
        for (int64_t row = 0; row < q_length; ++row) {
          const auto keys =
              problem::visible_keys(bounds.bounds, bounds.constants, row, q_length, kv_length);
          for (int64_t col = 0; col < kv_length; ++col) {
            EXPECT_EQ(keys.lo <= col && col < keys.hi,
                      col <= row + off + right && col > row + off - left);
          }
        }
      }
    }
  }
}

TEST(KeyBounds, ComparisonsBecomeIntervalsThatKeepTheSameKeys) {
  int taken = 0;
  for (uint64_t seed = 0; seed < 5000; ++seed) {
    Random random(seed);
    ScoreBuilder b;
    const auto row = b.leaf(ScoreOp::row), column = b.leaf(ScoreOp::column);
    const auto side = [&](ScoreBuilder::Node x) {
      const auto c = b.constant(static_cast<double>(random.integer(-3, 3)));
      x = b.apply(random.one_of({ScoreOp::add, ScoreOp::subtract}), x, c);
      return random.chance(0.2) ? b.apply(ScoreOp::negate, x) : x;
    };
    const auto comparison = [&] {
      const auto op = random.one_of({ScoreOp::less, ScoreOp::less_equal, ScoreOp::greater,
                                     ScoreOp::greater_equal, ScoreOp::equal, ScoreOp::not_equal});
      auto x = side(column), y = random.chance(0.7) ? side(row) : side(b.constant(4));
      if (random.chance(0.3)) y = side(b.leaf(ScoreOp::kv_length));
      return random.chance(0.5) ? b.apply(op, x, y) : b.apply(op, y, x);
    };
    auto keep = comparison();
    for (int n = 0; n < 2; ++n) {
      if (random.chance(0.4)) {
        keep =
            b.apply(random.one_of({ScoreOp::logical_and, ScoreOp::logical_or}), keep, comparison());
      }
      if (random.chance(0.2)) keep = b.apply(ScoreOp::logical_not, keep);
    }
    const auto dot = b.leaf(ScoreOp::dot), none = b.constant(-INFINITY);
    const bool mirrored = random.chance(0.3);
    const ScoreExpression score =
        b.expression(b.apply(ScoreOp::select, keep, mirrored ? none : dot, mirrored ? dot : none));
    fusion::Bounds bounds;
    const ScoreExpression rest = fusion::without_interval_masks(score, bounds);
    taken += rest.is_identity();
    problem::ScoreLeaves leaves;
    leaves.dot = 1, leaves.q_length = 6, leaves.kv_length = 9;
    for (leaves.row = 0; leaves.row < 6; ++leaves.row) {
      const auto keys = problem::visible_keys(bounds.bounds, bounds.constants,
                                              static_cast<int64_t>(leaves.row), 6, 9);
      for (leaves.column = 0; leaves.column < 9; ++leaves.column) {
        const bool visible = keys.lo <= leaves.column && leaves.column < keys.hi;
        ASSERT_EQ(visible ? problem::evaluate(rest, leaves) : -INFINITY,
                  problem::evaluate(score, leaves))
            << seed;
      }
    }
  }
  EXPECT_GT(taken, 1000);
}

TEST(KeyBounds, WhatIsNoIntervalStaysInTheScore) {
  ScoreBuilder b;
  const auto row = b.leaf(ScoreOp::row), column = b.leaf(ScoreOp::column);
  const auto parity = b.apply(ScoreOp::modulo, column, b.constant(2));
  const auto causal = b.apply(ScoreOp::less_equal, column, row);
  for (const ScoreExpression& score :
       {masked_dot(b, b.apply(ScoreOp::equal, parity, b.constant(0))),  // every other key
        masked_dot(b, causal, -1e9),                                    // a finite score is no mask
        masked_dot(b,
                   b.apply(ScoreOp::logical_or, causal, b.apply(ScoreOp::equal, parity, row)))}) {
    fusion::Bounds bounds;
    EXPECT_EQ(fusion::without_interval_masks(score, bounds), problem::simplified(score));
    EXPECT_TRUE(bounds.bounds.empty());
  }
}

TEST(KeyBounds, ValuesThatDoubleAndChainsThatNestAreLookedAtOnce) {
  ScoreBuilder b;
  const auto row = b.leaf(ScoreOp::row), column = b.leaf(ScoreOp::column);
  const auto causal = b.apply(ScoreOp::less_equal, column, row);
  auto twice = causal, deep = causal, sum = column, far = column;
  for (int n = 0; n < 1000; ++n) {
    twice = b.apply(ScoreOp::logical_and, twice, twice);
    sum = b.apply(ScoreOp::add, sum, sum);
  }
  for (int n = 0; n < 200'000; ++n) {
    deep = b.apply(ScoreOp::logical_not, deep);
    far = b.apply(ScoreOp::add, far, b.constant(1 + n % 2));
  }
  for (const auto keep : {twice, deep, b.apply(ScoreOp::less_equal, far, row)}) {
    fusion::Bounds bounds;
    EXPECT_TRUE(fusion::without_interval_masks(masked_dot(b, keep), bounds).is_identity());
    EXPECT_EQ(bounds.bounds.size(), 1u);
  }
  fusion::Bounds bounds;  // 2^1000 columns are no position
  const ScoreExpression score = masked_dot(b, b.apply(ScoreOp::less_equal, sum, row));
  EXPECT_EQ(fusion::without_interval_masks(score, bounds), problem::simplified(score));
}

TEST(KeyBounds, AHundredThousandNestedMasksArePeeledInLinearTime) {
  ScoreBuilder b;
  const auto row = b.leaf(ScoreOp::row), column = b.leaf(ScoreOp::column);
  auto score = b.leaf(ScoreOp::dot);
  const auto none = b.constant(-INFINITY);
  for (int n = 0; n < 100'000; ++n) {
    const auto shifted = b.apply(ScoreOp::add, row, b.constant(n));
    score = b.apply(ScoreOp::select, b.apply(ScoreOp::less_equal, column, shifted), score, none);
  }
  fusion::Bounds bounds;
  EXPECT_TRUE(fusion::without_interval_masks(b.expression(score), bounds).is_identity());
  EXPECT_EQ(bounds.bounds.size(), 100'000u);
}

}  // namespace
}  // namespace heddle::testing
