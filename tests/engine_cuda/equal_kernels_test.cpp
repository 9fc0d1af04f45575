// Equal structure and facts: equal kernels, to the byte.
#include <gtest/gtest.h>

#include <functional>

#include "engine/cuda/lowering.h"
#include "fusion/schedule.h"
#include "graph/validate.h"
#include "kernels/cases.h"
#include "kernels/lowered.h"
#include "kernels/streaming_cases.h"
#include "problem/facts.h"
#include "problem/operands.h"
#include "support/attention_programs.h"
#include "support/cache_programs.h"
#include "support/channel_norm_programs.h"
#include "support/part.h"
#include "support/pointwise_programs.h"
#include "support/smaller.h"
#include "support/streaming_programs.h"

namespace heddle::engine::cuda {
namespace {

using testing::Program;
using testing::Random;

bool have_equal_structure_and_facts(const Problem& one, const Problem& other) {
  return std::visit(
      [&]<class Kind>(const Kind& a) {
        const Kind* b = std::get_if<Kind>(&other);
        return b && a.structure == b->structure && problem::facts_of(a) == problem::facts_of(*b);
      },
      one);
}

bool have_equal_sizes(const Problem& one, const Problem& other) {
  const auto layouts = [](const Problem& problem) {
    return std::visit([](const auto& a) { return a.sizes.layouts; }, problem);
  };
  return layouts(one) == layouts(other);
}

/// How many pairs were compared that are of other sizes.
int compare_all(const std::vector<Problem>& problems, const char* architecture) {
  int pairs = 0;
  std::vector<Result<Lowering>> lowerings;
  for (const Problem& problem : problems) lowerings.push_back(lowered(problem, architecture));
  for (size_t n = 0; n < problems.size(); ++n) {
    for (size_t m = 0; m < n; ++m) {
      if (have_equal_sizes(problems[n], problems[m]) ||
          !have_equal_structure_and_facts(problems[n], problems[m]))
        continue;
      ++pairs;
      EXPECT_EQ(lowerings[n].is_ok(), lowerings[m].is_ok());
      if (!lowerings[n].is_ok() || !lowerings[m].is_ok()) continue;
      EXPECT_EQ(lowerings[n]->units, lowerings[m]->units) << lowerings[n]->description << "\n"
                                                          << lowerings[m]->description;
    }
  }
  return pairs;
}

/// Problems that agree in structure, and some of them in facts: variants of one drawing, and each
/// of them at smaller sizes.
std::vector<Problem> problems_of(uint64_t seed, const std::function<Program(Random&)>& draw) {
  std::vector<Problem> problems;
  const auto add = [&](Program program) {
    if (!graph::validate(program.graph).is_ok()) return;
    const auto schedule = fusion::fuse(program.graph);
    for (const fusion::Step& step : schedule->steps) problems.push_back(step.problem);
  };
  for (uint64_t variant = 0; variant < 4; ++variant) {
    Random random(seed, variant);
    const Program program = draw(random);
    add(program);
    add(testing::smaller(random, program));
  }
  return problems;
}

/// Over so many seeds; all of them together give about a pair each, a part's few maybe none.
void expect_equal_kernels(int seeds, const std::function<Program(Random&)>& draw,
                          double pairs_of_seed = 1) {
  for (const char* architecture : {"sm_80", "sm_90a"}) {
    int pairs = 0;
    for (uint64_t seed = 0; seed < static_cast<uint64_t>(seeds); ++seed) {
      if (!testing::part().has(seed)) continue;
      pairs += compare_all(problems_of(seed, draw), architecture);
      ASSERT_FALSE(::testing::Test::HasFailure()) << "seed " << seed << " on " << architecture;
    }
    if (testing::part().is_whole())
      EXPECT_GE(pairs, pairs_of_seed * seeds)
          << "too few pairs of equal structure and facts on " << architecture;
  }
}

testing::AttentionOptions small_attentions() {
  testing::AttentionOptions options;
  options.max_length = 20;
  options.rope = options.unaligned = options.narrow = options.by_value = 0.2;
  options.wide = options.any_head_dim = options.shared_keys = 0.1;
  options.max_and_sum = options.boolean_mask = options.wide_bias = 0.2;
  return options;
}

TEST(EqualKernels, OfRandomAttentions) {
  expect_equal_kernels(
      150, [](Random& random) { return testing::random_sdpa(random, small_attentions()); });
}

TEST(EqualKernels, OfRandomBackwards) {
  expect_equal_kernels(150, [](Random& random) {
    return testing::random_sdpa_backward(random, small_attentions());
  });
}

// Of keys enough for copies.
TEST(EqualKernels, OfRandomRows) {
  testing::AttentionOptions options = small_attentions();
  options.max_length = 400;
  options.max_batch = options.max_key_heads = options.max_group = 2;
  options.any_head_dim = options.shared_keys = options.wide = 0.4;
  // Few keys are a fact of their own for each 16.
  expect_equal_kernels(
      60, [&](Random& random) { return testing::random_sdpa(random, options); }, 0.5);
}

TEST(EqualKernels, OfRandomNorms) {
  const testing::NormOptions options{.aligned = 0.5, .max_aligned_columns = 4096};
  expect_equal_kernels(100,
                       [&](Random& random) { return testing::random_rms_norm(random, options); });
  expect_equal_kernels(
      100, [&](Random& random) { return testing::random_rms_norm_backward(random, options); });
  expect_equal_kernels(100,
                       [&](Random& random) { return testing::random_layer_norm(random, options); });
  expect_equal_kernels(
      100, [&](Random& random) { return testing::random_layer_norm_backward(random, options); });
}

TEST(EqualKernels, OfRandomChannelNorms) {
  expect_equal_kernels(60, testing::random_instance_norm);
  expect_equal_kernels(60, testing::random_instance_norm_backward);
  expect_equal_kernels(60, testing::random_batch_norm);
  expect_equal_kernels(60, testing::random_batch_norm_backward);
}

TEST(EqualKernels, OfRandomRopes) { expect_equal_kernels(100, testing::random_rope); }

TEST(EqualKernels, OfRandomPointwiseOps) { expect_equal_kernels(100, testing::random_pointwise); }

TEST(EqualKernels, OfRandomCacheAppends) {
  expect_equal_kernels(
      100, [](testing::Random& random) { return testing::random_cache_append(random, {}); });
}

// Lengths that tiles are chosen by.
TEST(EqualKernels, OfAnyLengthOfAClass) {
  for (const char* architecture : {"sm_80", "sm_90a"}) {
    for (DataType dtype : {DataType::bf16, DataType::f32}) {
      for (int dim : {64, 128, 256, 512}) {
        for (int feature = 0; feature <= static_cast<int>(Feature::rope_leading); ++feature) {
          std::vector<Problem> forwards, backwards;
          for (int64_t length : {1, 16, 48, 64, 65, 80, 257, 272, 305, 307, 512, 528, 2032, 2048,
                                 8176, 8192, 40000}) {
            const Case c{.dtype = dtype,
                         .qk_dim = dim,
                         .v_dim = dim,
                         .features = {static_cast<Feature>(feature)},
                         .length = length};
            forwards.push_back(forward_of(c));
            backwards.push_back(backward_of(c));
          }
          EXPECT_GE(compare_all(forwards, architecture), 4) << feature;
          EXPECT_GE(compare_all(backwards, architecture), 4) << feature;
        }
      }
    }
  }
}

// Rows that as many vectors hold, up to a power of two.
TEST(EqualKernels, OfAnyRowsOfAClass) {
  std::vector<Problem> norms;
  for (int64_t columns : {40, 56, 64, 520, 1000, 1024, 4088, 4096, 20000, 40000}) {
    for (int64_t rows : {1, 64, 100}) {
      norms.push_back(norm_of({.columns = columns, .rows = rows}));
      norms.push_back(norm_backward_of({.columns = columns, .rows = rows}));
    }
  }
  EXPECT_GE(compare_all(norms, "sm_90a"), 60);
}

}  // namespace
}  // namespace heddle::engine::cuda
