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

TEST_F(AttentionOnGpu, ForwardOfEveryPairOfFeaturesMatchesTheDefinition) {
  run([](Random& random,
         int64_t number) { return random_sdpa(random, feature_pair_options(number)); },
      2 * kFeaturePairs);
}

TEST_F(AttentionOnGpu, BackwardOfEveryPairOfFeaturesMatchesTheDefinition) {
  run([](Random& random,
         int64_t number) { return random_sdpa_backward(random, feature_pair_options(number)); },
      2 * kFeaturePairs);
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

// In f32: any strides by the general kernels, aligned tensors of narrow heads by Hopper's.
AttentionOptions f32_options() {
  AttentionOptions options = gpu_options();
  options.dtypes = {DataType::f32};
  options.max_head_dim = 256;
  return options;
}

AttentionOptions aligned_f32_options() {
  AttentionOptions options = f32_options();
  options.odd_strides = 0;
  options.max_length = 400;
  options.max_head_dim = 128;
  options.paged = options.block_mask = options.rng_dump = options.padding = 0;
  return options;
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
  AttentionOptions options = aligned_f32_options();
  options.max_head_dim = 64;
  options.bias = options.alibi = options.score_mod = options.dropout = 0.1;
  run([&options](Random& random) { return random_sdpa_backward(random, options); });
}

}  // namespace
}  // namespace heddle::testing
