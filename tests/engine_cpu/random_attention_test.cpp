// The CPU engine against the definitions, on random programs over the whole contract, at every
// instruction set this machine has. HEDDLE_TEST_SEEDS multiplies the number of programs,
// HEDDLE_TEST_PART (support/part.h) runs some of them.
#include <gtest/gtest.h>

#include <cstdint>
#include <functional>

#include "engine/cpu/engine.h"
#include "engine_cpu/levels.h"
#include "graph/text.h"
#include "graph/validate.h"
#include "support/attention_features.h"
#include "support/compare.h"
#include "support/part.h"
#include "support/run.h"

namespace heddle::testing {
namespace {

using Draw = std::function<Program(Random&, const AttentionOptions&)>;

int64_t seeds(int64_t count) {
  const char* factor = std::getenv("HEDDLE_TEST_SEEDS");
  return factor ? count * std::max(1, std::atoi(factor)) : count;
}

void check(Program program, const Definition& definition, Tolerance tolerance) {
  const Status status = run(program, engine::cpu_engine());
  ASSERT_TRUE(status.is_ok()) << status.message();
  EXPECT_TRUE(definition.is_met_by(program, tolerance)) << graph::write_text(program.graph);
}

/// At every level.
void check_levels(Program program, Tolerance tolerance) {
  const Status valid = graph::validate(program.graph);
  ASSERT_TRUE(valid.is_ok()) << valid.message();
  const Definition definition(program, io_dtype(program));
  for (engine::cpu::Isa isa : available_levels()) {
    SCOPED_TRACE(engine::cpu::name(isa));
    const ForcedLevel level(isa);
    check(program, definition, tolerance);
    if (::testing::Test::HasFailure()) return;
  }
}

/// `count` programs, or those of them that are in this run's part.
void sweep(const Draw& draw, const AttentionOptions& options, uint64_t first_seed, int64_t count,
           Tolerance tolerance = {}) {
  for (uint64_t seed = first_seed; seed < first_seed + static_cast<uint64_t>(count); ++seed) {
    if (!part().has(seed)) continue;
    SCOPED_TRACE("seed " + std::to_string(seed));
    Random random(seed);
    check_levels(draw(random, options), tolerance);
    if (::testing::Test::HasFailure()) return;
  }
}

void sweep_pairs(const Draw& draw, int64_t count) {
  for (size_t a = 0; a < kAttentionFeatureCount; ++a) {
    for (size_t b = a; b < kAttentionFeatureCount; ++b) {
      SCOPED_TRACE(std::string(kAttentionFeatures[a].name) + " with " + kAttentionFeatures[b].name);
      AttentionOptions options = plain_attention();
      kAttentionFeatures[a].switch_on(options);
      kAttentionFeatures[b].switch_on(options);
      sweep(draw, options, 1000 * (a * kAttentionFeatureCount + b), count);
      if (::testing::Test::HasFailure()) return;
    }
  }
}

/// Tiles, key blocks and panels larger than one: lengths past 256, head dims past a panel.
AttentionOptions large() {
  AttentionOptions o;
  o.max_batch = 2, o.max_key_heads = 2, o.max_group = 2;
  o.max_length = 620, o.max_head_dim = 136;
  o.rope = 0.2;
  return o;
}

TEST(RandomForward, Plain) { sweep(random_sdpa, plain_attention(), 1, seeds(60)); }
TEST(RandomForward, EveryPairOfFeatures) { sweep_pairs(random_sdpa, seeds(4)); }
TEST(RandomForward, EveryFeatureOverCaches) {
  for (const AttentionFeature& cache : kCacheFeatures) {
    for (size_t n = 0; n < kAttentionFeatureCount; ++n) {
      SCOPED_TRACE(std::string(cache.name) + " with " + kAttentionFeatures[n].name);
      AttentionOptions options = plain_attention();
      cache.switch_on(options);
      kAttentionFeatures[n].switch_on(options);
      sweep(random_sdpa, options, 2000000 + 1000 * n, seeds(6));
      if (::testing::Test::HasFailure()) return;
    }
  }
}
/// Codes in rings and in pages, of many keys; decoding, which does not pack them, and tiles.
AttentionOptions caches() {
  AttentionOptions options;
  options.codes = 0.8, options.rings = 0.5, options.paged = 0.5, options.padding = 0.8;
  options.scores = 0.2;
  options.ragged = 0.1, options.max_length = 700, options.max_group = 8, options.max_head_dim = 136;
  options.max_batch = options.max_key_heads = 2;
  return options;
}
TEST(RandomForward, CachesOfManyKeys) {
  sweep(random_sdpa, caches(), 2100000, seeds(20));
  AttentionOptions decoding = caches();
  decoding.max_query_length = 3, decoding.max_length = 3000;
  sweep(random_sdpa, decoding, 2200000, seeds(60));
}
/// A latent that queries see whole, and values that are its first columns.
TEST(RandomForward, ValuesInKeys) {
  AttentionOptions options = caches();
  options.codes = 0, options.values_in_keys = options.more_key_columns = 1;
  sweep(random_sdpa, options, 2300000, seeds(20));
}
TEST(RandomForward, EverythingAtOnce) {
  AttentionOptions options;
  options.rope = 0.3;
  sweep(random_sdpa, options, 100000, seeds(300));
}
/// Rows that a program masks whole by a finite number.
AttentionOptions hidden_rows() {
  AttentionOptions o;
  o.dtypes = {DataType::f32, DataType::bf16};
  o.max_length = 300;
  o.bias = o.score_mod = 0.6;
  o.sink = 0;
  o.hidden_rows = 1;
  return o;
}

/// With a score_mod of more than arithmetic.
AttentionOptions score_functions() {
  AttentionOptions options;
  options.score_mod = options.score_functions = 1, options.padding = options.log2_input = 0;
  return options;
}

TEST(RandomForward, ScoreFunctions) { sweep(random_sdpa, score_functions(), 940000, seeds(60)); }
TEST(RandomBackward, ScoreFunctions) {
  sweep(random_sdpa_backward, score_functions(), 950000, seeds(60));
}
// Of 32 bits they are sign-extended, which beside offsets below zero would cancel.
TEST(RandomForward, SeedsOfDropoutBelowZero) {
  AttentionOptions options;
  options.dropout = 1;
  const Draw draw = [](Random& random, const AttentionOptions& of) {
    Program program = random_sdpa(random, of);
    const graph::Node& node = program.graph.nodes.back();
    const graph::Dropout& dropout = std::get<graph::Sdpa>(node.op).attention.dropout;
    if (dropout.offset != graph::kNone)
      program.set_integer(dropout.seed, -1 - random.integer(0, INT32_MAX));
    return program;
  };
  sweep(draw, options, 960000, seeds(30));
}
/// With a NaN in every fifth row of Q.
AttentionOptions undefined_rows() {
  AttentionOptions options;
  options.undefined_rows = 1;
  options.max_length = 150, options.rope = 0.2, options.score_functions = 0.3;
  return options;
}

/// All of it in f64, statistics too. K and V are no codes.
AttentionOptions in_f64(AttentionOptions options) {
  options.dtypes = {DataType::f64};
  options.statistics_dtype = DataType::f64;
  options.codes = 0;
  return options;
}
/// The definition is computed in f64 too, so its own rounding is beside the result's.
constexpr Tolerance kInF64{.floor_steps = 16, .cancellation_steps = 16};

void sweep_features_in_f64(const Draw& draw, uint64_t first_seed, int64_t count) {
  for (size_t n = 0; n < kAttentionFeatureCount; ++n) {
    SCOPED_TRACE(kAttentionFeatures[n].name);
    AttentionOptions options = plain_attention();
    kAttentionFeatures[n].switch_on(options);
    sweep(draw, in_f64(options), first_seed + 1000 * n, count, kInF64);
    if (::testing::Test::HasFailure()) return;
  }
}

TEST(RandomForward, F64) {
  sweep(random_sdpa, in_f64(plain_attention()), 3000000, seeds(30), kInF64);
  sweep_features_in_f64(random_sdpa, 3100000, seeds(6));
  sweep(random_sdpa, in_f64(AttentionOptions()), 3200000, seeds(100), kInF64);
  sweep(random_sdpa, in_f64(score_functions()), 3300000, seeds(30), kInF64);
  sweep(random_sdpa, in_f64(hidden_rows()), 3400000, seeds(20), kInF64);
}
TEST(RandomForward, F64OfManyKeys) {
  sweep(random_sdpa, in_f64(large()), 3500000, seeds(8), kInF64);
  sweep(random_sdpa, in_f64(caches()), 3600000, seeds(8), kInF64);
  AttentionOptions decoding = caches();
  decoding.max_query_length = 3, decoding.max_length = 3000;
  sweep(random_sdpa, in_f64(decoding), 3700000, seeds(20), kInF64);
}
TEST(RandomBackward, F64) {
  sweep(random_sdpa_backward, in_f64(plain_attention()), 4000000, seeds(30), kInF64);
  sweep_features_in_f64(random_sdpa_backward, 4100000, seeds(6));
  sweep(random_sdpa_backward, in_f64(AttentionOptions()), 4200000, seeds(100), kInF64);
  sweep(random_sdpa_backward, in_f64(score_functions()), 4300000, seeds(30), kInF64);
  sweep(random_sdpa_backward, in_f64(hidden_rows()), 4400000, seeds(20), kInF64);
}
TEST(RandomBackward, F64OfManyKeys) {
  sweep(random_sdpa_backward, in_f64(large()), 4500000, seeds(8), kInF64);
}

TEST(RandomForward, RowsWithANanStayNan) {
  sweep(random_sdpa, undefined_rows(), 960000, seeds(40));
  AttentionOptions decoding = undefined_rows();
  decoding.single_row = decoding.max_batch = 1, decoding.max_length = 2000;
  sweep(random_sdpa, decoding, 970000, seeds(20));
}

TEST(RandomForward, HiddenRows) { sweep(random_sdpa, hidden_rows(), 400000, seeds(40)); }
/// Any head dims and strides, keys that batch entries or heads share, results in f32.
AttentionOptions of_any_rows() {
  AttentionOptions o;
  o.any_head_dim = 0.8, o.unaligned = o.shared_keys = o.wide = 0.3, o.rope = 0.2;
  return o;
}
TEST(RandomForward, OfAnyRows) { sweep(random_sdpa, of_any_rows(), 1600000, seeds(150)); }
TEST(RandomBackward, OfAnyRows) { sweep(random_sdpa_backward, of_any_rows(), 1700000, seeds(100)); }

TEST(RandomForward, ManyTiles) { sweep(random_sdpa, large(), 200000, seeds(12)); }

/// One query row and keys enough to be cut into parts.
TEST(RandomForward, DecodingCutsTheKeys) {
  AttentionOptions options;
  options.max_batch = options.max_key_heads = 1, options.max_group = 8, options.max_length = 5000;
  options.score_mod = options.rope = 0;
  options.single_row = 1;
  sweep(random_sdpa, options, 500000, seeds(40));
}

/// Tiles of so few rows that keys and values are used where they lie.
TEST(RandomForward, FewRowsSeeManyKeys) {
  AttentionOptions options;
  options.max_group = 2, options.max_query_length = 4, options.max_length = 600;
  options.max_head_dim = 136, options.paged = 0.5;
  sweep(random_sdpa, options, 600000, seeds(60));
}

/// Key blocks of which a panel, a tile or nobody sees anything.
AttentionOptions sparse() {
  AttentionOptions o = large();
  o.block_mask = 1, o.score_mod = o.dropout = 0;
  return o;
}
TEST(RandomForward, BlockMasksOfManyTiles) { sweep(random_sdpa, sparse(), 700000, seeds(8)); }

/// The same by booleans that the score loads.
AttentionOptions hidden_by_booleans() {
  AttentionOptions o = large();
  o.max_length = 420, o.score_mod = o.boolean_mask = 1, o.log2_input = o.padding = 0;
  return o;
}
TEST(RandomForward, BooleanMasks) { sweep(random_sdpa, hidden_by_booleans(), 900000, seeds(5)); }
TEST(RandomForward, BooleanMasksOfFewRows) {
  AttentionOptions options = hidden_by_booleans();
  options.max_group = 2, options.max_query_length = 4, options.max_length = 900;
  sweep(random_sdpa, options, 910000, seeds(30));
}
TEST(RandomBackward, HiddenRows) {
  AttentionOptions options = hidden_rows();
  sweep(random_sdpa_backward, options, 400000, seeds(20));
  options.max_and_sum = 1;
  sweep(random_sdpa_backward, options, 450000, seeds(20));
}
TEST(RandomBackward, BooleanMasks) {
  sweep(random_sdpa_backward, hidden_by_booleans(), 920000, seeds(2));
}

TEST(RandomBackward, BlockMasksOfManyTiles) {
  sweep(random_sdpa_backward, sparse(), 800000, seeds(3));
}
TEST(RandomBackward, Plain) { sweep(random_sdpa_backward, plain_attention(), 1, seeds(60)); }
/// Of a loss that also reads the rows' log-sum-exps, in either form.
AttentionOptions of_log_sum_exps() {
  AttentionOptions o;
  o.stats_gradient = 1, o.max_and_sum = 0.5, o.sink = 0.5, o.rope = 0.2, o.score_functions = 0.3;
  return o;
}
TEST(RandomBackward, OfLogSumExps) {
  sweep(random_sdpa_backward, of_log_sum_exps(), 1500000, seeds(100));
}
TEST(RandomBackward, EveryPairOfFeatures) { sweep_pairs(random_sdpa_backward, seeds(4)); }
TEST(RandomBackward, EverythingAtOnce) {
  AttentionOptions options;
  options.rope = 0.3, options.max_and_sum = 0.3, options.stats_gradient = 0.3;
  sweep(random_sdpa_backward, options, 300000, seeds(300));
}
/// Backwards from the maximum and the sum, which the engine's own forward leaves.
AttentionOptions maximum_and_sum() {
  AttentionOptions o;
  o.max_and_sum = 1;
  return o;
}
TEST(RandomTraining, MaximumAndSum) {
  sweep(random_training_step, maximum_and_sum(), 1000000, seeds(100));
}
TEST(RandomTraining, RowsHiddenWholeHaveGradients) {
  AttentionOptions options = hidden_rows();
  options.max_and_sum = options.bias = 1, options.sink = 0.2;
  sweep(random_training_step, options, 1100000, seeds(40));
  options.max_query_length = 4;
  sweep(random_training_step, options, 1200000, seeds(20));
}
/// Scores of a thousand, of which one in a row counts: an f32 has no place beside them for the log
/// of a sum, and a score made in another order is another one.
AttentionOptions large_scores() {
  AttentionOptions o;
  o.dtypes = {DataType::f32};
  o.max_and_sum = 1, o.query_size = 1000;
  return o;
}
TEST(RandomTraining, LargeScores) {
  // An error is that of the few pairs of scores that nearly tie, and may, of a handful of rows, be
  // many times another rounding's; over a thousand programs both are as large. From Stats dV is off
  // by thousands.
  constexpr Tolerance kTies{.factor = 40};
  sweep(random_training_step, large_scores(), 1300000, seeds(60), kTies);
  AttentionOptions decoding = large_scores();
  decoding.max_query_length = 4;
  sweep(random_training_step, decoding, 1400000, seeds(30), kTies);
  AttentionOptions tiles = large_scores();
  tiles.max_length = 300, tiles.max_head_dim = 136;
  sweep(random_training_step, tiles, 1500000, seeds(5), kTies);
}
TEST(RandomBackward, ManyTiles) { sweep(random_sdpa_backward, large(), 400000, seeds(4)); }

}  // namespace
}  // namespace heddle::testing
