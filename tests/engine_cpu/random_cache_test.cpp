// New rows in caches, and attention to them, against the definitions: every pair of features, at
// every instruction set this machine has.
#include <gtest/gtest.h>

#include <iterator>

#include "engine/cpu/engine.h"
#include "engine_cpu/levels.h"
#include "graph/text.h"
#include "graph/validate.h"
#include "support/attention_programs.h"
#include "support/cache_programs.h"
#include "support/compare.h"
#include "support/part.h"
#include "support/run.h"

namespace heddle::testing {
namespace {

void sweep(const CacheOptions& options, uint64_t first_seed, uint64_t count) {
  for (uint64_t seed = first_seed; seed < first_seed + count; ++seed) {
    if (!part().has(seed)) continue;
    SCOPED_TRACE("seed " + std::to_string(seed));
    Random random(seed);
    Program program = random_cache_append(random, options);
    const Status valid = graph::validate(program.graph);
    ASSERT_TRUE(valid.is_ok()) << valid.message();
    const Definition definition(program, io_dtype(program));
    for (engine::cpu::Isa isa : available_levels()) {
      SCOPED_TRACE(engine::cpu::name(isa));
      const ForcedLevel level(isa);
      Program results = program;
      const Status status = run(results, engine::cpu_engine());
      ASSERT_TRUE(status.is_ok()) << status.message();
      ASSERT_TRUE(definition.is_met_by(results)) << graph::write_text(program.graph);
    }
  }
}

/// Q, K and V apart, put behind nothing.
CacheOptions plain() {
  CacheOptions o;
  o.packed = o.has_past = o.in_place = o.paged = o.ring = o.codes = o.new_lengths =
      o.lengths_out_of_range = o.bad_pages = o.rotates = o.interleaved = o.positions =
          o.positions_out_of_range = o.norms = 0;
  return o;
}

struct Feature {
  const char* name;
  void (*switch_on)(CacheOptions&);
};
constexpr Feature kFeatures[] = {
    {"packed", [](CacheOptions& o) { o.packed = 1; }},
    {"past", [](CacheOptions& o) { o.has_past = 1; }},
    {"in_place", [](CacheOptions& o) { o.has_past = o.in_place = 1; }},
    {"paged", [](CacheOptions& o) { o.has_past = o.paged = 1; }},
    {"bad_pages", [](CacheOptions& o) { o.has_past = o.paged = 1, o.bad_pages = 0.3; }},
    {"ring", [](CacheOptions& o) { o.has_past = o.ring = 1; }},
    {"codes", [](CacheOptions& o) { o.codes = 1; }},
    {"new_lengths", [](CacheOptions& o) { o.new_lengths = 1; }},
    {"out_of_range", [](CacheOptions& o) { o.has_past = 1, o.lengths_out_of_range = 0.5; }},
    {"rotates", [](CacheOptions& o) { o.rotates = 1; }},
    {"interleaved", [](CacheOptions& o) { o.rotates = o.interleaved = 1; }},
    {"positions",
     [](CacheOptions& o) { o.rotates = o.positions = 1, o.positions_out_of_range = 0.2; }},
    {"norms", [](CacheOptions& o) { o.norms = 1; }},
};

void sweep_pairs(const CacheOptions& base, uint64_t first_seed, uint64_t count) {
  for (size_t a = 0; a < std::size(kFeatures); ++a) {
    for (size_t b = a; b < std::size(kFeatures); ++b) {
      SCOPED_TRACE(std::string(kFeatures[a].name) + " with " + kFeatures[b].name);
      CacheOptions options = base;
      kFeatures[a].switch_on(options);
      kFeatures[b].switch_on(options);
      sweep(options, first_seed + 1000 * (a * std::size(kFeatures) + b), count);
      if (::testing::Test::HasFailure()) return;
    }
  }
}

TEST(RandomCacheAppend, EveryPairOfFeatures) { sweep_pairs(plain(), 1, 6); }
TEST(RandomCacheAppend, EverythingAtOnce) { sweep({}, 300000, 300); }
TEST(RandomCacheAppend, ManyTokensOfWideHeads) {
  CacheOptions options;
  options.max_new_rows = 120, options.max_past = 90, options.max_head_dim = 256;
  sweep(options, 400000, 30);
}
// NaN and infinities among new numbers and scales.
TEST(RandomCacheAppend, NoNumbers) {
  CacheOptions options;
  options.no_numbers = 0.1, options.codes = 0.7;
  sweep(options, 900000, 100);
}
/// Codes next to the definition's make an attention another one: these are random_attention_test's.
TEST(RandomCacheAppend, AndAttention) {
  CacheOptions options = plain();
  options.attends = 1;
  sweep_pairs(options, 500000, 4);
  options = {};
  options.attends = 1, options.codes = 0;
  sweep(options, 800000, 200);
}

}  // namespace
}  // namespace heddle::testing
