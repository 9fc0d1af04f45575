// Products of bf16 by tiles: which plans use them, and every width of their last tiles. The tiles
// are the machine's where it has AMX, else their stand-in's.
#include <gtest/gtest.h>

#include "engine/cpu/engine.h"
#include "engine_cpu/levels.h"
#include "engine_cpu/problems.h"
#include "graph/text.h"
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
  for (DataType other : {DataType::f32, DataType::f16}) {
    EXPECT_FALSE(uses_tiles(causal_attention(other, 1, 2, 1, 100, 64)));
    EXPECT_FALSE(uses_tiles(causal_attention_backward(other, 1, 2, 1, 100, 64)));
  }
}

template <class Draw>
void sweep(const Draw& draw, uint64_t first_seed, uint64_t count, AttentionOptions options) {
  options.dtypes = {DataType::bf16};
  const ForcedLevel level(Isa::amx);
  for (uint64_t seed = first_seed; seed < first_seed + count; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Random random(seed);
    Program program = draw(random, options);
    const Definition definition(program, DataType::bf16);
    const Status status = run(program, engine::cpu_engine());
    ASSERT_TRUE(status.is_ok()) << status.message();
    ASSERT_TRUE(definition.is_met_by(program)) << graph::write_text(program.graph);
  }
}

/// Any head dims, so that sums end anywhere in a tile, and lengths that do.
AttentionOptions any_width() {
  AttentionOptions options;
  options.any_head_dim = 1, options.max_head_dim = 140, options.max_length = 140;
  options.single_row = 0, options.max_batch = 1, options.max_key_heads = 2;
  return options;
}

TEST_F(Tiles, OfAnyWidth) {
  sweep(random_sdpa, 1, 60, any_width());
  sweep(random_sdpa_backward, 1000, 40, any_width());
}

/// Several blocks of keys and several tiles of rows.
TEST_F(Tiles, OfManyBlocks) {
  AttentionOptions options = any_width();
  options.max_length = 700, options.max_head_dim = 70;
  sweep(random_sdpa, 2000, 12, options);
  sweep(random_training_step, 3000, 8, options);
}

}  // namespace
}  // namespace heddle::testing
