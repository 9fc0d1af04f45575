// What a valid problem is: each rule that one can break, in the sentence that says so.
#include "problem/check.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>

#include "engine_cpu/problems.h"
#include "problem/operands.h"

namespace heddle::problem {
namespace {

using testing::causal_attention;
using testing::causal_attention_backward;

template <class Kind>
struct Rule {
  const char* sentence;  ///< a part of it
  std::function<void(Kind&)> breaks;
};

template <class Kind>
void expect_refused(const Kind& good, std::initializer_list<Rule<Kind>> rules) {
  ASSERT_TRUE(check(Problem(good)).is_ok()) << check(Problem(good)).message();
  for (const Rule<Kind>& rule : rules) {
    Kind bad = good;
    rule.breaks(bad);
    const Status status = check(Problem(bad));
    ASSERT_FALSE(status.is_ok()) << rule.sentence;
    EXPECT_NE(status.message().find(rule.sentence), std::string::npos) << status.message();
  }
}

TEST(Check, OfAnAttention) {
  expect_refused<AttentionProblem>(
      causal_attention(DataType::f32, 2, 4, 2, 8, 8),
      {{"q has dims [2, 4, 9, 8], but must have [2, 4, 8, 8]",
        [](auto& p) { p.sizes.layouts[0].dims[2] = 9; }},
       {"must each divide that of query heads (4)", [](auto& p) { p.sizes.k_heads = 3; }},
       {"o is required", [](auto& p) { p.structure.o = kAbsent; }},
       {"q is operand 99, of only 5", [](auto& p) { p.structure.q = 99; }},
       {"sink is operand -7, of only 5", [](auto& p) { p.structure.sink = -7; }},
       {"q_length is -1, but must not be negative", [](auto& p) { p.sizes.q_length = -1; }},
       {"neither of which may be negative", [](auto& p) { p.sizes.layouts[1].strides[2] = -8; }},
       {"spans more than 2^59", [](auto& p) { p.sizes.layouts[1].strides[2] = int64_t{1} << 60; }},
       {"o with dims [2, 4, 8, 8] and strides [256, 64, 0, 1] would be written on top of itself",
        [](auto& p) { p.sizes.layouts[3].strides[2] = 0; }},
       {"5 operands but 4 layouts", [](auto& p) { p.sizes.layouts.pop_back(); }},
       {"1 key bounds but 0 bound constants", [](auto& p) { p.sizes.bound_constants.clear(); }},
       {"bound constant 1152921504606846977 is beyond 2^60",
        [](auto& p) { p.sizes.bound_constants[0] = (int64_t{1} << 60) + 1; }},
       // Its magnitude is itself.
       {"bound constant -9223372036854775808 is beyond 2^60",
        [](auto& p) { p.sizes.bound_constants[0] = INT64_MIN; }},
       {"no node 3 for its root", [](auto& p) { p.structure.score.root = 3; }},
       {"only derivatives may", [](auto& p) { p.structure.score.nodes[0].op = ScoreOp::gradient; }},
       {"stats is bf16, but must be f32",
        [](auto& p) { p.structure.operands[4].dtype = DataType::bf16; }},
       {"v_head_dim is 0", [](auto& p) { p.structure.v_head_dim = 0; }},
       {"k is f32, but must be i8, u8, f8e4m3",
        [](auto& p) {
          p.structure.operands[1].scales = {Scales::Per::tensor, 4};
        }},
       {"refers to operand 9, which does not exist",
        [](auto& p) { p.structure.operands[1].storage = Storage::paged_by(9); }},
       {"rope_dim of q is 7, expected an even number up to 8",
        [](auto& p) { p.structure.q_rope = Rope{.rope_dim = 7}; }},
       {"rope of q begins at column 4, expected one from 0 to 2, as it turns 6 of 8",
        [](auto& p) { p.structure.q_rope = Rope{.rope_dim = 6, .first_column = 4}; }},
       {"rope of k takes angles, or cosines and sines, and not both",
        [](auto& p) { p.structure.k_rope = Rope{.rope_dim = 8}; }}});
}

TEST(Check, OfABackward) {
  expect_refused<AttentionBackwardProblem>(
      causal_attention_backward(DataType::f32, 2, 4, 2, 8, 8),
      {{"needs the stats that the forward pass wrote",
        [](auto& p) { p.structure.forward.stats = kAbsent; }},
       {"dO is required", [](auto& p) { p.structure.d_o = kAbsent; }},
       {"dQ has dims [2, 4, 7, 8]", [](auto& p) { p.sizes.layouts[6].dims[2] = 7; }},
       {"dV with dims [2, 2, 8, 8] and strides [128, 64, 4, 1] would be written on top of itself",
        [](auto& p) { p.sizes.layouts[8].strides[2] = 4; }},
       {"dStats has dims [2, 4, 8, 8]", [](auto& p) { p.structure.d_stats = p.structure.d_o; }},
       {"dStats is bf16",
        [](auto& p) {
          p.structure.d_stats = static_cast<OperandId>(p.sizes.layouts.size());
          p.sizes.layouts.push_back(p.sizes.layout(p.structure.forward.stats));
          p.structure.forward.operands.push_back({DataType::bf16});
        }},
       {"dSink is wanted, but there is no sink", [](auto& p) { p.structure.d_sink = 4; }}});
}

NormProblem norm() {
  NormProblem p;
  p.structure.operands = {{DataType::bf16}, {DataType::f32}, {DataType::bf16}};
  p.sizes.layouts = {{{6, 40}, {40, 1}}, {{1, 40}, {0, 1}}, {{6, 40}, {40, 1}}};
  p.structure.x = 0, p.structure.weight = 1, p.structure.y = 2;
  return p;
}

TEST(Check, OfANorm) {
  expect_refused<NormProblem>(
      norm(),
      {{"x is required", [](auto& p) { p.structure.x = kAbsent; }},
       {"weight is required", [](auto& p) { p.structure.weight = kAbsent; }},
       {"3 dims are normalised, of the 2", [](auto& p) { p.structure.normalised_dims = 3; }},
       {"weight has dims [1, 39], but must have [1, 40]",
        [](auto& p) { p.sizes.layouts[1].dims[1] = 39; }},
       {"y with dims [6, 40] and strides [20, 1] would be written on top of itself",
        [](auto& p) { p.sizes.layouts[2].strides[0] = 20; }},
       {"spans more than 2^59", [](auto& p) { p.sizes.layouts[0].strides[0] = int64_t{1} << 62; }},
       {"epsilon is operand 7, of only 3", [](auto& p) { p.structure.epsilon = 7; }},
       {"rms_norm: a mean is given, which only layer_norm has",
        [](auto& p) {
          p.structure.operands.push_back({DataType::f32});
          p.sizes.layouts.push_back({{6, 1}, {1, 0}});
          p.structure.mean = 3;
        }},
       {"rms_norm: a sum is given without a residual", [](auto& p) { p.structure.sum = 2; }},
       {"rms_norm: a residual bias is given without a residual",
        [](auto& p) { p.structure.residual_bias = 1; }},
       {"residual has dims [1, 40], but must have [6, 40]",
        [](auto& p) { p.structure.residual = 1; }},
       {"layer_norm: mean has dims [1, 40], but must have [6, 1]", [](auto& p) {
          p.structure.centred = true;
          p.structure.mean = 1;
        }}});
}

TEST(Check, TheBackwardOfLayerNormNeedsMeans) {
  NormBackwardProblem p;
  p.structure.centred = true;
  p.structure.operands = {{DataType::bf16}, {DataType::f32}, {DataType::bf16}, {DataType::f32}};
  p.sizes.layouts = {{{6, 40}, {40, 1}}, {{1, 40}, {0, 1}}, {{6, 40}, {40, 1}}, {{6, 1}, {1, 0}}};
  p.structure.x = 0, p.structure.weight = 1, p.structure.dx = 2, p.structure.inv_rms = 3;
  p.structure.dy = 0, p.structure.mean = 3;
  expect_refused<NormBackwardProblem>(
      p, {{"layer_norm: mean is required", [](auto& p) { p.structure.mean = kAbsent; }}});
}

RopeProblem rope() {
  RopeProblem p;
  p.structure.operands = {{DataType::f16}, {DataType::f16}, {DataType::f32}, {DataType::i32}};
  p.sizes.layouts = {{{2, 2, 5, 8}, {80, 40, 8, 1}},
                     {{2, 2, 5, 8}, {80, 40, 8, 1}},
                     {{5, 1, 1, 8}, {8, 0, 0, 1}},
                     {{2, 1, 1, 1}, {1, 0, 0, 0}}};
  p.structure.x = 0, p.structure.y = 1;
  p.structure.rope.angles = 2, p.structure.rope.rope_dim = 8;
  return p;
}

TEST(Check, OfARope) {
  expect_refused<RopeProblem>(
      rope(),
      {{"rope_dim is 7, expected an even number up to 8",
        [](auto& p) { p.structure.rope.rope_dim = 7; }},
       {"and not both", [](auto& p) { p.structure.rope.cosines = p.structure.rope.sines = 2; }},
       {"and not both", [](auto& p) { p.structure.rope.angles = kAbsent; }},
       {"angles has dims [4, 1, 1, 8], expected at least [5, 1, 1, 4]",
        [](auto& p) { p.sizes.layouts[2].dims[0] = 4; }},
       {"y has dims [2, 2, 4, 8]", [](auto& p) { p.sizes.layouts[1].dims[2] = 4; }},
       {"would be written on top of itself", [](auto& p) { p.sizes.layouts[1].strides[1] = 8; }},
       {"expected a finite number",
        [](auto& p) { p.sizes.scale = std::numeric_limits<double>::infinity(); }},
       {"positions has dims [2, 1, 1, 1], but must have [2, 1, 5, 1]", [](auto& p) {
          p.structure.rope.positions = 3;
          p.structure.rope.positions_per_row = true;
        }}});
}

/// y = x + b, of which b is broadcast.
PointwiseProblem pointwise() {
  PointwiseProblem p;
  p.structure.operands = {{DataType::f16}, {DataType::f32}, {DataType::bf16}};
  p.sizes.layouts = {
      {{2, 2, 5, 8}, {80, 40, 8, 1}}, {{1, 2, 1, 8}, {0, 8, 0, 1}}, {{2, 2, 5, 8}, {80, 40, 8, 1}}};
  p.structure.nodes = {{.op = ScoreOp::load, .operand = 0},
                       {.op = ScoreOp::load, .operand = 1},
                       {.op = ScoreOp::add, .a = 0, .b = 1}};
  p.structure.results = {{2, 2}};
  return p;
}

TEST(Check, OfPointwiseOps) {
  expect_refused<PointwiseProblem>(
      pointwise(),
      {{"there is no result", [](auto& p) { p.structure.results.clear(); }},
       {"a result is required", [](auto& p) { p.structure.results[0].y = kAbsent; }},
       {"a result is node 3, of only 3", [](auto& p) { p.structure.results[0].node = 3; }},
       {"operand 2 is written twice",
        [](auto& p) {
          p.structure.results.push_back({0, 2});
        }},
       {"a result has dims [1, 2, 1, 8], but must have [2, 2, 5, 8]",
        [](auto& p) {
          p.structure.results.push_back({0, 1});
        }},
       {"node 1 (add) of the program reads node 2",
        [](auto& p) { p.structure.nodes[1] = {.op = ScoreOp::add, .a = 0, .b = 2}; }},
       {"a node is dot, which only scores have",
        [](auto& p) { p.structure.nodes[1] = {.op = ScoreOp::dot}; }},
       {"an input has dims [1, 2, 1, 9], which do not broadcast to [2, 2, 5, 8]",
        [](auto& p) { p.sizes.layouts[1].dims[3] = 9; }},
       {"an input is f64", [](auto& p) { p.structure.operands[0].dtype = DataType::f64; }},
       {"an input is no dense tensor",
        [](auto& p) { p.structure.operands[0].storage = Storage::in_ring(); }},
       {"an input is operand 7, of only 3", [](auto& p) { p.structure.nodes[0].operand = 7; }},
       {"would be written on top of itself", [](auto& p) { p.sizes.layouts[2].strides[0] = 8; }},
       {"one step has 2049 ops",
        [](auto& p) { p.structure.nodes.resize(kMostPointwiseNodes + 1, {.op = ScoreOp::row}); }}});
}

/// Two new rows of 2 heads on 1, D 8, into int8 caches of 4 rows.
CacheAppendProblem append() {
  CacheAppendProblem p;
  const OperandType codes{.dtype = DataType::i8, .scales = {Scales::Per::channel, 5}};
  p.structure.operands = {{DataType::f32}, codes,           codes,           codes,
                          codes,           {DataType::f32}, {DataType::i32}, {DataType::f32},
                          {DataType::f32}, {DataType::f32}};
  const OperandLayout cache{{3, 1, 4, 8}, {32, 0, 8, 1}};
  p.sizes.layouts = {{{3, 4, 2, 8}, {64, 16, 8, 1}},
                     cache,
                     cache,
                     cache,
                     cache,
                     {{1, 1, 1, 8}, {0, 0, 0, 1}},
                     {{3, 1, 1, 1}, {1, 0, 0, 0}},
                     {{9, 1, 1, 2}, {2, 0, 0, 1}},
                     {{9, 1, 1, 2}, {2, 0, 0, 1}},
                     {{3, 2, 2, 8}, {32, 16, 8, 1}}};
  p.structure.q = 0, p.structure.past_k = 1, p.structure.past_v = 2;
  p.structure.k_cache = 3, p.structure.v_cache = 4, p.structure.total_lengths = 6;
  p.structure.cosines = 7, p.structure.sines = 8, p.structure.q_out = 9, p.structure.rope_dim = 4;
  p.structure.qk_head_dim = p.structure.v_head_dim = 8;
  p.sizes.batch = 3, p.sizes.q_heads = 2, p.sizes.kv_heads = 1, p.sizes.length = 2;
  p.sizes.capacity = 4;
  return p;
}

TEST(Check, OfACacheAppend) {
  expect_refused<CacheAppendProblem>(
      append(),
      {{"q is required", [](auto& p) { p.structure.q = kAbsent; }},
       {"q has dims [3, 4, 2, 8], but must have [3, 5, 2, 8]",
        [](auto& p) { p.sizes.q_heads = 3; }},
       {"come in pairs", [](auto& p) { p.structure.v_cache = kAbsent; }},
       {"k and v are given, but no caches",
        [](auto& p) {
          p.structure.k = p.structure.v = 0;
          p.structure.k_cache = p.structure.v_cache = kAbsent;
        }},
       {"a past is given without the cache of k",
        [](auto& p) { p.structure.k_cache = p.structure.v_cache = kAbsent, p.sizes.q_heads = 4; }},
       {"packed heads of q, k and v have 8 and 4 columns",
        [](auto& p) { p.structure.v_head_dim = 4; }},
       {"the cache of k has dims [3, 1, 4, 8], but must have [3, 1, 5, 8]",
        [](auto& p) { p.sizes.capacity = 5; }},
       {"the cache of k is f32, but must be i8, u8, f8e4m3",
        [](auto& p) { p.structure.operands[3].dtype = DataType::f32; }},
       {"are not of one type and storage",
        [](auto& p) { p.structure.operands[2].storage = Storage::in_ring(); }},
       {"rings of k and v have 4 and 3 rows, expected as many",
        [](auto& p) {
          for (OperandId id : {1, 2, 3, 4}) p.structure.type(id).storage = Storage::in_ring();
          p.sizes.layouts[4].dims[2] = 3;
        }},
       {"a past has dims [2, 1, 4, 8]", [](auto& p) { p.sizes.layouts[1].dims[0] = 2; }},
       {"a scale of codes has dims [1, 1, 1, 7]", [](auto& p) { p.sizes.layouts[5].dims[3] = 7; }},
       {"a scale of codes is i32", [](auto& p) { p.structure.operands[5].dtype = DataType::i32; }},
       {"a scale of codes is operand 77, of only 10",
        [](auto& p) { p.structure.operands[3].scales.operand = 77; }},
       {"total_lengths has dims [2, 1, 1, 1]", [](auto& p) { p.sizes.layouts[6].dims[0] = 2; }},
       {"cosines and sines come together", [](auto& p) { p.structure.sines = kAbsent; }},
       {"rope_dim is 10, expected an even number up to 8",
        [](auto& p) { p.structure.rope_dim = 10; }},
       {"sines has dims [9, 1, 1, 1]", [](auto& p) { p.sizes.layouts[8].dims[3] = 1; }},
       {"rotated q has dims [3, 2, 2, 7]", [](auto& p) { p.sizes.layouts[9].dims[3] = 7; }},
       {"q_epsilon is -1", [](auto& p) { p.sizes.q_epsilon = -1; }},
       {"length is -1, but must be from 0", [](auto& p) { p.sizes.length = -1; }},
       {"total_offset is 2147483648, but must have 32 bits",
        [](auto& p) { p.sizes.total_offset = int64_t{1} << 31; }},
       {"total_offset is -9223372036854775808, but must have 32 bits",
        [](auto& p) { p.sizes.total_offset = INT64_MIN; }},
       {"positions is operand 44, of only 10", [](auto& p) { p.structure.positions = 44; }},
       {"the cache of v with dims [3, 1, 4, 8] and strides [32, 0, 0, 1] would be written on top",
        [](auto& p) { p.sizes.layouts[4].strides[2] = 0; }}});
}

// What a check does not visit, it cannot find out of range.
TEST(Operands, AreVisitedWhereverTheyAreNamed) {
  AttentionBackwardProblem p = causal_attention_backward(DataType::f32, 1, 1, 1, 4, 8);
  AttentionBackwardStructure& s = p.structure;
  s.forward.q_rope = s.forward.k_rope = s.d_q_rope = s.d_k_rope = Rope{};
  s.load_gradients.push_back({.derivative = {{{.op = ScoreOp::load}}, 0}});
  s.forward.score = {{{.op = ScoreOp::load}}, 0};
  OperandId next = 0;
  operands([&](const char*, OperandId& id, Use) { id = next++; }, s);
  // Of the tensors 8, statistics, scores and scale 6, the score 1, masks, lengths, the sink
  // and its gradient 5, the largest gradient 1, dropout 6, four ropes of 5, the gradient of a
  // load 3.
  EXPECT_EQ(next, 50);
  EXPECT_EQ(s.forward.q, 0);
  EXPECT_EQ(s.d_k_rope->rotated, 49);
}

}  // namespace
}  // namespace heddle::problem
