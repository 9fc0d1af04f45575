// The CPU engine where paths are switched off: each that is left gives what the definition says.
#include <gtest/gtest.h>
#include <tbb/task_arena.h>

#include <algorithm>
#include <set>

#include "engine/cpu/engine.h"
#include "engine_cpu/levels.h"
#include "engine_cpu/problems.h"
#include "graph/text.h"
#include "graph/validate.h"
#include "support/attention_features.h"
#include "support/compare.h"
#include "support/environment.h"
#include "support/run.h"

namespace heddle::testing {
namespace {

using engine::Plan;
using engine::Problem;
using problem::AttentionPath;

constexpr const char *kNoFlash = "HEDDLE_DISABLE_FLASH_ATTENTION",
                     *kNoDecode = "HEDDLE_DISABLE_FLASH_DECODE",
                     *kNoMemoryEfficient = "HEDDLE_DISABLE_MEMORY_EFFICIENT_ATTENTION";

/// O alone is a result, of four heads on one.
problem::AttentionProblem attention(int64_t q_length, int64_t kv_length) {
  problem::AttentionProblem p = causal_attention(DataType::f32, 2, 4, 1, kv_length, 64);
  p.sizes.q_length = q_length;
  for (size_t id : {0, 3, 4}) p.sizes.layouts[id] = dense({2, 4, q_length, id == 4 ? 1 : 64});
  return p;
}

AttentionPath path_of(const Problem& problem) {
  const auto plan = engine::cpu_engine().plan(problem);
  EXPECT_TRUE(plan.is_ok()) << plan.status().message();
  return (*plan)->attention_path()->path;
}

TEST(AttentionPath, IsChosenByRowsAndByWhatIsLeft) {
  const Problem step = attention(1, 300), prompt = attention(300, 300);
  EXPECT_EQ(path_of(step), AttentionPath::decode);
  EXPECT_EQ(path_of(prompt), AttentionPath::flash);
  {
    const Environment off(kNoDecode, "1");
    EXPECT_EQ(path_of(step), AttentionPath::flash);
    EXPECT_EQ(path_of(prompt), AttentionPath::flash);
  }
  const Environment off(kNoFlash, "1");
  EXPECT_EQ(path_of(step), AttentionPath::memory_efficient);
  EXPECT_EQ(path_of(prompt), AttentionPath::memory_efficient);
}

TEST(AttentionPath, TakesLessMemoryWithoutPackedKeys) {
  const auto bytes = [](const Problem& problem) {
    return (*engine::cpu_engine().plan(problem))->workspace_bytes();
  };
  const Problem prompt = attention(2048, 2048);
  const int64_t flash = bytes(prompt);
  const Environment off(kNoFlash, "1");
  EXPECT_LT(2 * bytes(prompt), flash);
}

TEST(AttentionPath, IsRefusedWhereNoneIsLeft) {
  const Environment no_flash(kNoFlash, "1");
  problem::AttentionProblem prompt = attention(300, 300);
  {
    const Environment none(kNoMemoryEfficient, "1");
    EXPECT_EQ(engine::cpu_engine().plan(prompt).status().message(),
              "cpu: every path that serves an attention is switched off: decode by "
              "HEDDLE_DISABLE_FLASH_ATTENTION=1, flash by HEDDLE_DISABLE_FLASH_ATTENTION=1, "
              "memory_efficient by HEDDLE_DISABLE_MEMORY_EFFICIENT_ATTENTION=1");
  }
  std::swap(prompt.structure.stats, prompt.structure.max);
  EXPECT_EQ(engine::cpu_engine().plan(prompt).status().message(),
            "cpu: maxima of rows are results, which flash alone gives, and paths are switched off: "
            "decode by HEDDLE_DISABLE_FLASH_ATTENTION=1, flash by "
            "HEDDLE_DISABLE_FLASH_ATTENTION=1");
}

TEST(AttentionPath, RefusesAWrongSwitch) {
  const Environment wrong(kNoFlash, "on");
  EXPECT_EQ(engine::cpu_engine().plan(attention(1, 300)).status().message(),
            "HEDDLE_DISABLE_FLASH_ATTENTION is 'on', expected 0 or 1");
}

// As of the other paths: measured on one machine, it serves every other.
TEST(AttentionPath, HasOneWorkspaceOnEveryMachine) {
  const Environment off(kNoFlash, "1");
  for (const int64_t rows : {1, 2, 3, 7, 100, 2048}) {
    std::set<int64_t> sizes;
    for (engine::cpu::Isa isa : available_levels()) {
      const ForcedLevel level(isa);
      for (int workers : {1, 2, 16, 64, 200}) {
        tbb::task_arena(workers).execute([&] {
          sizes.insert((*engine::cpu_engine().plan(attention(rows, 2048)))->workspace_bytes());
        });
      }
    }
    EXPECT_EQ(sizes.size(), 1U) << rows;
  }
}

bool wants_maxima(const Program& program) {
  const auto& nodes = program.graph.nodes;
  return std::any_of(nodes.begin(), nodes.end(), [](const graph::Node& node) {
    const auto* op = std::get_if<graph::Sdpa>(&node.op);
    return op && op->max != graph::kNone;
  });
}

/// Random programs at every level with the variable set. Those that want maxima are refused without
/// flash, in words.
void sweep(const char* variable, const AttentionOptions& options, uint64_t first_seed,
           uint64_t count) {
  const Environment off(variable, "1");
  for (uint64_t seed = first_seed; seed < first_seed + count; ++seed) {
    SCOPED_TRACE(fmt::format("{}, seed {}", variable, seed));
    Random random(seed);
    Program program = random_sdpa(random, options);
    ASSERT_TRUE(graph::validate(program.graph).is_ok());
    const Definition definition(program, io_dtype(program));
    for (engine::cpu::Isa isa : available_levels()) {
      const ForcedLevel level(isa);
      Program one = program;
      const Status status = run(one, engine::cpu_engine());
      if (variable == kNoFlash && wants_maxima(program)) {
        ASSERT_TRUE(status.message().starts_with("cpu: maxima of rows are results"));
        continue;
      }
      ASSERT_TRUE(status.is_ok()) << status.message();
      ASSERT_TRUE(definition.is_met_by(one)) << graph::write_text(one.graph);
    }
  }
}

AttentionOptions large() {
  AttentionOptions options;
  options.max_batch = 2, options.max_key_heads = 2, options.max_group = 3;
  options.max_length = 620, options.max_head_dim = 136;
  options.rope = 0.2;
  return options;
}

TEST(AttentionPath, MemoryEfficientMeetsTheDefinition) {
  sweep(kNoFlash, large(), 1, 12);
  for (size_t n = 0; n < kAttentionFeatureCount; ++n) {
    AttentionOptions options = plain_attention();
    kAttentionFeatures[n].switch_on(options);
    sweep(kNoFlash, options, 1000 * n, 2);
    if (HasFailure()) return;
  }
  for (const AttentionFeature& cache : kCacheFeatures) {
    AttentionOptions options = plain_attention();
    cache.switch_on(options);
    sweep(kNoFlash, options, 5000, 5);
  }
}

TEST(AttentionPath, FlashMeetsTheDefinitionInPlaceOfDecode) {
  AttentionOptions options = plain_attention();
  options.max_query_length = 2, options.max_length = 600;
  sweep(kNoDecode, options, 1, 25);
}

}  // namespace
}  // namespace heddle::testing
