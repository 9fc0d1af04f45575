// Products by tiles, of bf16 and of f16 and f32 in bf16 parts: which plans use them, every width of
// their last tiles, and numbers that parts do not hold. The tiles are the machine's where it has
// AMX, else their stand-in's.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

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
  for (DataType other : {DataType::f32, DataType::f16})
    EXPECT_FALSE(uses_tiles(causal_attention_backward(other, 1, 2, 1, 100, 64)));
}

TEST_F(Tiles, MultiplyPartsOfManyRows) {
  const ForcedLevel level(Isa::amx);
  const auto attention = [](DataType dtype, int64_t length, bool has_statistics) {
    problem::AttentionProblem p = causal_attention(dtype, 1, 2, 1, length, 64);
    if (!has_statistics) p.structure.stats = problem::kAbsent;
    return words_of(p);
  };
  using ::testing::HasSubstr;
  EXPECT_THAT(attention(DataType::f32, 100, false), HasSubstr("three bf16 parts"));
  EXPECT_THAT(attention(DataType::f16, 100, false), HasSubstr("two bf16 parts"));
  EXPECT_THAT(attention(DataType::f32, 2, false), Not(HasSubstr("parts")));
  EXPECT_THAT(attention(DataType::f32, 100, true), Not(HasSubstr("parts")));
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

/// Forwards of no statistics, which are those of parts.
AttentionOptions of_parts(DataType dtype) {
  AttentionOptions options = any_width(dtype);
  options.statistics = 0;
  return options;
}

TEST_F(Tiles, OfPartsOfAnyWidth) {
  for (DataType dtype : {DataType::f32, DataType::f16})
    sweep(random_sdpa, 4000, 40, of_parts(dtype));
}

TEST_F(Tiles, OfPartsOfUndefinedRowsAndLargeScores) {
  for (DataType dtype : {DataType::f32, DataType::f16}) {
    AttentionOptions options = of_parts(dtype);
    options.undefined_rows = 1;
    sweep(random_sdpa, 6000, 10, options);
    options.undefined_rows = 0, options.query_size = 50;
    sweep(random_sdpa, 7000, 20, options);
  }
}

/// Several blocks of keys and several tiles of rows.
TEST_F(Tiles, OfManyBlocks) {
  for (DataType dtype : {DataType::bf16, DataType::f32, DataType::f16}) {
    AttentionOptions options = dtype == DataType::bf16 ? any_width() : of_parts(dtype);
    options.max_length = 700, options.max_head_dim = 70;
    sweep(random_sdpa, 2000, 12, options);
    if (dtype == DataType::bf16) sweep(random_training_step, 3000, 8, options);
  }
}

struct Extreme {
  const char* words;
  double q = 1, k = 1, v = 1;  ///< what operands are multiplied by
  /// In the place of a number, unless 0: of a value that ten rows see, of one and a key that none
  /// does.
  double value = 0, hidden_value = 0, hidden_key = 0;
};

Program attention(DataType dtype, const Extreme& extreme) {
  constexpr int64_t kRows = 300, kKeys = 530, kColumns = 40;
  Program program;
  Random random(5);
  graph::Graph& graph = program.graph;
  graph.io_dtype = dtype;
  graph.intermediate_dtype = graph.compute_dtype = DataType::f32;
  const auto made = [&](const char* name, Dims dims, double size) {
    const graph::TensorId id = program.add(name, dtype, std::move(dims));
    program.allocate(id);
    program.fill(id, [&] { return size * random.normal(); });
    return id;
  };
  graph::Sdpa node;
  node.q = made("q", {1, 2, kRows, kColumns}, extreme.q);
  node.k = made("k", {1, 1, kKeys, kColumns}, extreme.k);
  node.v = made("v", {1, 1, kKeys, kColumns}, extreme.v);
  if (extreme.value != 0) program.set(node.v, extreme.value, 0, 0, 50, 9);
  if (extreme.hidden_value != 0) program.set(node.v, extreme.hidden_value, 0, 0, 450, 9);
  if (extreme.hidden_key != 0) program.set(node.k, extreme.hidden_key, 0, 0, 450, 7);
  node.attention.attn_scale = 0.2 / (extreme.q * extreme.k);
  node.attention.right_bound = 100;
  node.o = program.add("o", dtype, {1, 2, kRows, kColumns});
  program.allocate(node.o);
  graph.nodes = {{"attention", node}};
  return program;
}

/// Numbers whose parts would be infinite, or below the normal range and so 0: the same rows are
/// computed in single numbers, and no others' results change.
TEST_F(Tiles, OfNumbersThatPartsDoNotHold) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  const ForcedLevel level(Isa::amx);
  std::vector<std::pair<DataType, Extreme>> cases{
      {DataType::f32, {.words = "large queries", .q = 1e25, .k = 1e-5}},
      {DataType::f32, {.words = "small keys", .q = 1e5, .k = 1e-34}},
      {DataType::f32, {.words = "small values", .v = 1e-34}},
      {DataType::f32, {.words = "large values", .v = 1e30}},
      {DataType::f32, {.words = "a large value", .value = 3.39e38}},
      {DataType::f32, {.words = "a small value", .value = 3e-38}},
  };
  for (DataType dtype : {DataType::f32, DataType::f16}) {
    cases.push_back({dtype, {.words = "an infinite value", .value = kInfinity}});
    cases.push_back({dtype, {.words = "a hidden value", .hidden_value = std::nan("")}});
    cases.push_back({dtype, {.words = "a hidden key", .hidden_key = std::nan("")}});
  }
  for (const auto& [dtype, extreme] : cases) {
    SCOPED_TRACE(::testing::Message() << name(dtype) << ", " << extreme.words);
    Program program = attention(dtype, extreme);
    const Status valid = graph::validate(program.graph);
    ASSERT_TRUE(valid.is_ok()) << valid.message();
    const Definition definition(program, dtype);
    const Status status = run(program, engine::cpu_engine());
    ASSERT_TRUE(status.is_ok()) << status.message();
    EXPECT_TRUE(definition.is_met_by(program));
  }
}

}  // namespace
}  // namespace heddle::testing
