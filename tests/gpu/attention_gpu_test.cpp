// Attention on the CUDA engine against the f64 definition: seeded random problems over the whole
// contract, each with poisoned outputs, gaps and tails.
#include "gpu/gpu_test.h"
#include "support/attention_programs.h"

namespace heddle::testing {
namespace {

// Problems that fit tensor-core kernels: both 16-bit types, lengths around and past the tile sizes.
AttentionOptions gpu_options() {
  AttentionOptions options;
  options.dtypes = {DataType::bf16, DataType::f16};
  options.max_length = 200;
  options.max_head_dim = 128;
  return options;
}

class AttentionOnGpu : public OnGpu {};

TEST_F(AttentionOnGpu, ForwardMatchesTheDefinition) {
  run([](Random& random) { return random_sdpa(random, gpu_options()); });
}

// Dense tensors, whose rows the copy engine can fetch: on Hopper these run the kernel made for it.
TEST_F(AttentionOnGpu, ForwardOfAlignedTensorsMatchesTheDefinition) {
  AttentionOptions options = gpu_options();
  options.odd_strides = 0;
  options.max_length = 400;
  options.max_head_dim = 256;
  options.paged = options.block_mask = options.rng_dump = 0;
  run([&options](Random& random) { return random_sdpa(random, options); });
}

TEST_F(AttentionOnGpu, BackwardMatchesTheDefinition) {
  run([](Random& random) { return random_sdpa_backward(random, gpu_options()); });
}

}  // namespace
}  // namespace heddle::testing
