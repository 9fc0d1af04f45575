// Attention on fp8 operands by every way there is on a GPU, against the f64 definition: Hopper's
// own kernels, and those of 16 bits behind tensors that are widened.
#include "gpu/gpu_test.h"
#include "support/fp8_programs.h"

namespace heddle::testing {
namespace {

class Fp8 : public OnGpu {};

TEST_F(Fp8, HopperForwardMatchesTheDefinition) {
  run([](Random& random) { return random_sdpa_fp8(random, {.for_hopper = true}); });
}
// The scales' product is a subnormal number, which a GPU takes for 0, and a hidden key's score
// -inf.
TEST_F(Fp8, HopperForwardOfTinyScalesMatchesTheDefinition) {
  run(
      [](Random& random, int64_t) {
        Program program = random_sdpa_fp8(random, {.for_hopper = true});
        const auto& op = std::get<graph::SdpaFp8>(program.graph.nodes[0].op);
        program.set(op.descale_q, 1e-24, 0);
        program.set(op.descale_k, 1e-15, 0);
        return program;
      },
      6, 1);
}
TEST_F(Fp8, HopperBackwardMatchesTheDefinition) {
  run([](Random& random) { return random_sdpa_fp8_backward(random, {.for_hopper = true}); });
}
TEST_F(Fp8, ForwardMatchesTheDefinition) {
  run([](Random& random) { return random_sdpa_fp8(random); });
}
TEST_F(Fp8, BackwardMatchesTheDefinition) {
  run([](Random& random) { return random_sdpa_fp8_backward(random); });
}

}  // namespace
}  // namespace heddle::testing
