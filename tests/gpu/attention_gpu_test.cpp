// Attention on the CUDA engine against the f64 definition: seeded random problems over the whole
// contract, each with poisoned outputs, gaps and tails.
#include "gpu/attention_options.h"
#include "gpu/gpu_test.h"

namespace heddle::testing {
namespace {

class AttentionOnGpu : public OnGpu {};

TEST_F(AttentionOnGpu, ForwardMatchesTheDefinition) {
  run([](Random& random) { return random_sdpa(random, gpu_options()); });
}

TEST_F(AttentionOnGpu, ForwardOfAlignedTensorsMatchesTheDefinition) {
  AttentionOptions options = aligned_options();
  options.max_head_dim = 256;
  run([&options](Random& random) { return random_sdpa(random, options); });
}

TEST_F(AttentionOnGpu, BackwardMatchesTheDefinition) {
  run([](Random& random) { return random_sdpa_backward(random, gpu_options()); });
}

TEST_F(AttentionOnGpu, BackwardOfAlignedTensorsMatchesTheDefinition) {
  run([](Random& random) { return random_sdpa_backward(random, aligned_backward_options()); });
}

TEST_F(AttentionOnGpu, BackwardOfRaggedTensorsMatchesTheDefinition) {
  AttentionOptions options = aligned_backward_options();
  options.padding = options.ragged = 1;
  run([&options](Random& random) { return random_sdpa_backward(random, options); });
}

TEST_F(AttentionOnGpu, ForwardWithScoreTilesMatchesTheDefinition) {
  run([](Random& random) { return random_sdpa(random, score_tile_options()); });
}

TEST_F(AttentionOnGpu, BackwardWithScoreTilesMatchesTheDefinition) {
  run([](Random& random) { return random_sdpa_backward(random, score_tile_options()); });
}

// The definition takes seconds for each: few of them.
TEST_F(AttentionOnGpu, ForwardOfLongRowsMatchesTheDefinition) {
  run([](Random& random, int64_t) { return random_sdpa(random, long_options()); }, 12, 3);
}

TEST_F(AttentionOnGpu, BackwardOfLongRowsMatchesTheDefinition) {
  run([](Random& random, int64_t) { return random_sdpa_backward(random, long_options()); }, 12, 3);
}

// The narrowest heads have tiles of their own.
TEST_F(AttentionOnGpu, BackwardOfNarrowHeadsMatchesTheDefinition) {
  AttentionOptions options = gpu_options();
  options.max_head_dim = 16;
  run([&options](Random& random) { return random_sdpa_backward(random, options); });
}

TEST_F(AttentionOnGpu, ForwardOfEveryPairOfFeaturesMatchesTheDefinition) {
  run([](Random& random,
         int64_t number) { return random_sdpa(random, feature_pair_options(number)); },
      2 * kFeaturePairs, 2);
}

TEST_F(AttentionOnGpu, BackwardOfEveryPairOfFeaturesMatchesTheDefinition) {
  run([](Random& random,
         int64_t number) { return random_sdpa_backward(random, feature_pair_options(number)); },
      2 * kFeaturePairs, 2);
}

TEST_F(AttentionOnGpu, ForwardWithRopeMatchesTheDefinition) {
  run([](Random& random) {
    AttentionOptions options = random.chance(0.5) ? aligned_options() : gpu_options();
    options.rope = 1;
    return random_sdpa(random, options);
  });
}

TEST_F(AttentionOnGpu, BackwardWithRopeMatchesTheDefinition) {
  run([](Random& random) {
    AttentionOptions options = random.chance(0.5) ? aligned_backward_options() : gpu_options();
    options.rope = 1;
    return random_sdpa_backward(random, options);
  });
}

TEST_F(AttentionOnGpu, ForwardInF32MatchesTheDefinition) {
  run([](Random& random) { return random_sdpa(random, f32_options()); });
}

TEST_F(AttentionOnGpu, ForwardOfAlignedF32MatchesTheDefinition) {
  run([](Random& random) { return random_sdpa(random, aligned_f32_options()); });
}

TEST_F(AttentionOnGpu, BackwardInF32MatchesTheDefinition) {
  run([](Random& random) { return random_sdpa_backward(random, f32_options()); });
}

TEST_F(AttentionOnGpu, BackwardOfAlignedF32MatchesTheDefinition) {
  run([](Random& random) { return random_sdpa_backward(random, aligned_f32_backward_options()); });
}

}  // namespace
}  // namespace heddle::testing
