// Products by tiles, of bf16 and of f16 and f32 in bf16 parts: which plans use them, every width of
// their last tiles, and numbers that parts do not hold. The tiles are the machine's where it has
// AMX, else their stand-in's.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "engine/cpu/engine.h"
#include "engine_cpu/levels.h"
#include "engine_cpu/problems.h"
#include "graph/text.h"
#include "graph/validate.h"
#include "support/attention_programs.h"
#include "support/compare.h"
#include "support/run.h"

namespace heddle::testing {
namespace {

using engine::cpu::Isa;

/// The level, where it or its stand-in runs.
class Tiles : public ::testing::Test {
 protected:
  void SetUp() override {
    available_levels();
    if (!engine::cpu::is_available(Isa::amx))
      GTEST_SKIP() << "neither AMX nor what stands in for it";
  }
};

std::string words_of(const engine::Problem& problem) {
  return engine::cpu_engine().plan(problem).value()->description();
}

TEST_F(Tiles, MultiplyBf16OfManyRows) {
  const ForcedLevel level(Isa::amx);
  const auto uses_tiles = [](const engine::Problem& problem) {
    return words_of(problem).find("by tiles") != std::string::npos;
  };
  EXPECT_TRUE(uses_tiles(causal_attention(DataType::bf16, 1, 2, 1, 100, 64)));
  EXPECT_TRUE(uses_tiles(causal_attention_backward(DataType::bf16, 1, 2, 1, 100, 64)));
  EXPECT_FALSE(uses_tiles(causal_attention(DataType::bf16, 1, 2, 1, 2, 64)));
}

/// Q, K and V of the type; the score with a bias, if one is wanted.
problem::AttentionProblem attention(DataType dtype, int64_t length, bool statistics, bool bias) {
  problem::AttentionProblem p = causal_attention(dtype, 1, 2, 1, length, 64);
  if (!statistics) p.structure.stats = problem::kAbsent;
  if (!bias) return p;
  p.structure.operands.push_back({DataType::f32});
  p.sizes.layouts.push_back(dense({1, 1, length, length}));
  problem::ScoreNode load{problem::ScoreOp::load}, sum{problem::ScoreOp::add};
  load.operand = 5, sum.a = 0, sum.b = 1;
  p.structure.score = {{problem::ScoreNode{}, load, sum}, 2};
  return p;
}

/// Statistics are for a backward, which multiplies f32 in single numbers, as it does where it makes
/// the gradient of what a score loads.
TEST_F(Tiles, MultiplyPartsOfManyRows) {
  const ForcedLevel level(Isa::amx);
  const auto words = [](DataType dtype, int64_t length, bool statistics, bool bias) {
    return words_of(attention(dtype, length, statistics, bias));
  };
  const auto of = [](const char* parts) { return ::testing::HasSubstr(parts); };
  for (bool bias : {false, true}) {
    EXPECT_THAT(words(DataType::f32, 100, false, bias), of("three bf16 parts"));
    EXPECT_THAT(words(DataType::f16, 100, false, bias), of("two bf16 parts"));
    EXPECT_THAT(words(DataType::f32, 100, true, bias), Not(of("parts")));
    EXPECT_THAT(words(DataType::f32, 2, false, bias), Not(of("parts")));
  }
  EXPECT_THAT(words(DataType::f16, 100, true, false), of("two bf16 parts"));
  EXPECT_THAT(words(DataType::f16, 100, true, true), Not(of("parts")));
  EXPECT_THAT(words_of(causal_attention_backward(DataType::f16, 1, 2, 1, 100, 64)),
              of("two bf16 parts"));
  EXPECT_THAT(words_of(causal_attention_backward(DataType::f32, 1, 2, 1, 100, 64)),
              Not(of("parts")));
  problem::AttentionBackwardProblem wide =
      causal_attention_backward(DataType::f16, 1, 2, 1, 100, 64);
  wide.structure.forward.operands[5].dtype = DataType::f32;
  EXPECT_THAT(words_of(wide), Not(of("parts")));
}

template <class Draw>
void sweep(const Draw& draw, uint64_t first_seed, uint64_t count, AttentionOptions options) {
  const ForcedLevel level(Isa::amx);
  for (uint64_t seed = first_seed; seed < first_seed + count; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Random random(seed);
    Program program = draw(random, options);
    const Definition definition(program, io_dtype(program));
    const Status status = run(program, engine::cpu_engine());
    ASSERT_TRUE(status.is_ok()) << status.message();
    ASSERT_TRUE(definition.is_met_by(program)) << graph::write_text(program.graph);
  }
}

/// Any head dims, so that sums end anywhere in a tile, and lengths that do.
AttentionOptions any_width(DataType dtype = DataType::bf16) {
  AttentionOptions options;
  options.dtypes = {dtype};
  options.any_head_dim = 1, options.max_head_dim = 140, options.max_length = 140;
  options.single_row = 0, options.max_batch = 1, options.max_key_heads = 2;
  return options;
}

TEST_F(Tiles, OfAnyWidth) {
  sweep(random_sdpa, 1, 60, any_width());
  sweep(random_sdpa_backward, 1000, 40, any_width());
}

AttentionOptions without_statistics(DataType dtype) {
  AttentionOptions options = any_width(dtype);
  options.statistics = 0;
  return options;
}
AttentionOptions without_loads(DataType dtype) {
  AttentionOptions options = any_width(dtype);
  options.bias = options.score_mod = 0;
  return options;
}

TEST_F(Tiles, OfPartsOfAnyWidth) {
  for (DataType dtype : {DataType::f32, DataType::f16})
    sweep(random_sdpa, 4000, 40, without_statistics(dtype));
  sweep(random_sdpa_backward, 5000, 40, without_loads(DataType::f16));
  sweep(random_training_step, 5500, 40, without_loads(DataType::f16));
}

TEST_F(Tiles, OfPartsOfUndefinedRowsAndLargeScores) {
  for (DataType dtype : {DataType::f32, DataType::f16}) {
    AttentionOptions options = without_statistics(dtype);
    options.undefined_rows = 1;
    sweep(random_sdpa, 6000, 10, options);
    options.undefined_rows = 0, options.query_size = 50;
    sweep(random_sdpa, 7000, 20, options);
  }
  AttentionOptions options = without_loads(DataType::f16);
  options.query_size = 3;
  sweep(random_training_step, 8000, 20, options);
}

TEST_F(Tiles, OfPartsOfLoadedScores) {
  for (DataType dtype : {DataType::f32, DataType::f16}) {
    AttentionOptions options = without_statistics(dtype);
    options.bias = options.score_mod = 1;
    sweep(random_sdpa, 9000, 20, options);
  }
}

/// Several blocks of keys and several tiles of rows.
TEST_F(Tiles, OfManyBlocks) {
  for (DataType dtype : {DataType::bf16, DataType::f32, DataType::f16}) {
    AttentionOptions options = without_statistics(dtype);
    options.max_length = 700, options.max_head_dim = 70;
    sweep(random_sdpa, 2000, 12, options);
    if (dtype == DataType::f16) options.bias = options.score_mod = 0;
    if (dtype != DataType::f32) sweep(random_training_step, 3000, 8, options);
  }
}

struct Extreme {
  const char* words;
  double q = 1, k = 1, v = 1;  ///< what operands are multiplied by
  /// In the place of a number, unless 0: of a value that all rows see, of one and a key that none
  /// does.
  double value = 0, hidden_value = 0, hidden_key = 0;
};

/// A forward, and a backward with it if one is wanted.
Program attention(DataType dtype, const Extreme& extreme, bool has_backward = false) {
  constexpr int64_t kRows = 300, kKeys = 530, kColumns = 40;
  Program program;
  Random random(5);
  graph::Graph& graph = program.graph;
  graph.io_dtype = dtype;
  graph.intermediate_dtype = graph.compute_dtype = DataType::f32;
  const auto made = [&](const char* name, DataType type, Dims dims, double size) {
    const graph::TensorId id = program.add(name, type, std::move(dims));
    program.allocate(id);
    program.fill(id, [&] { return size * random.normal(); });
    return id;
  };
  graph::Sdpa node;
  node.q = made("q", dtype, {1, 2, kRows, kColumns}, extreme.q);
  node.k = made("k", dtype, {1, 1, kKeys, kColumns}, extreme.k);
  node.v = made("v", dtype, {1, 1, kKeys, kColumns}, extreme.v);
  if (extreme.value != 0) program.set(node.v, extreme.value, 0, 0, 50, 9);
  if (extreme.hidden_value != 0) program.set(node.v, extreme.hidden_value, 0, 0, 450, 9);
  if (extreme.hidden_key != 0) program.set(node.k, extreme.hidden_key, 0, 0, 450, 7);
  node.attention.attn_scale = 0.2 / (extreme.q * extreme.k);
  node.attention.right_bound = 100;
  const auto result = [&](const char* name, DataType type, Dims dims) {
    const graph::TensorId id = program.add(name, type, std::move(dims));
    program.allocate(id);
    return id;
  };
  node.o = result("o", dtype, {1, 2, kRows, kColumns});
  if (has_backward) node.stats = result("stats", DataType::f32, {1, 2, kRows, 1});
  graph.nodes = {{"attention", node}};
  if (!has_backward) return program;
  graph::SdpaBackward backward;
  backward.q = node.q, backward.k = node.k, backward.v = node.v, backward.o = node.o;
  backward.stats = node.stats, backward.attention = node.attention;
  backward.d_o = made("d_o", dtype, {1, 2, kRows, kColumns}, 1);
  backward.d_q = result("d_q", dtype, {1, 2, kRows, kColumns});
  backward.d_k = result("d_k", dtype, {1, 1, kKeys, kColumns});
  backward.d_v = result("d_v", dtype, {1, 1, kKeys, kColumns});
  graph.nodes.push_back({"backward", backward});
  return program;
}

/// Numbers whose parts would be infinite, or below the normal range and so 0: the same rows are
/// computed in single numbers, and no others' results change.
TEST_F(Tiles, OfNumbersThatPartsDoNotHold) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  const ForcedLevel level(Isa::amx);
  std::vector<std::pair<DataType, Extreme>> cases{
      {DataType::f32, {.words = "small keys", .q = 1e5, .k = 1e-34}},
      {DataType::f32, {.words = "a large value", .value = 3.39e38}},
  };
  for (DataType dtype : {DataType::f32, DataType::f16}) {
    cases.push_back({dtype, {.words = "an infinite value", .value = kInfinity}});
    cases.push_back({dtype, {.words = "a hidden value", .hidden_value = std::nan("")}});
    cases.push_back({dtype, {.words = "a hidden key", .hidden_key = std::nan("")}});
  }
  for (const auto& [dtype, extreme] : cases) {
    SCOPED_TRACE(::testing::Message() << name(dtype) << ", " << extreme.words);
    // A hidden value is the one that leaves every gradient a number.
    Program program = attention(dtype, extreme, extreme.hidden_value != 0);
    const Status valid = graph::validate(program.graph);
    ASSERT_TRUE(valid.is_ok()) << valid.message();
    const Definition definition(program, dtype);
    const Status status = run(program, engine::cpu_engine());
    ASSERT_TRUE(status.is_ok()) << status.message();
    EXPECT_TRUE(definition.is_met_by(program));
  }
}

/// Values a power of two as large give an output as much larger, to the bit of an f32 or nearly:
/// parts that were 0 would show.
TEST_F(Tiles, OfPartsScaleWithTheirValues) {
  const ForcedLevel level(Isa::amx);
  const auto output = [](double scale) {
    Program program = attention(DataType::f32, {.words = "", .v = scale});
    EXPECT_TRUE(graph::validate(program.graph).is_ok());
    EXPECT_TRUE(run(program, engine::cpu_engine()).is_ok());
    const graph::TensorId o = std::get<graph::Sdpa>(program.graph.nodes[0].op).o;
    const Dims& dims = program.graph[o].dims;
    const auto* from = reinterpret_cast<const float*>(program.block(o)->data());
    return std::vector<double>(from, from + dims[1] * dims[2] * dims[3]);
  };
  const std::vector<double> plain = output(1);
  for (double scale : {0x1p-110, 0x1p-80, 0x1p50, 0x1p100}) {
    const std::vector<double> scaled = output(scale);
    double largest = 0, apart = 0;
    for (size_t i = 0; i < plain.size(); ++i) {
      largest = std::max(largest, std::abs(plain[i]));
      apart = std::max(apart, std::abs(scaled[i] / scale - plain[i]));
    }
    EXPECT_LT(apart, 4e-6 * largest) << scale;
  }
}

}  // namespace
}  // namespace heddle::testing
