// Attention on fp8 operands by every way there is on a GPU, against the f64 definition: Hopper's
// own kernels, and those of 16 bits behind tensors that are widened.
#include <cstring>

#include "gpu/gpu_test.h"
#include "support/fp8_programs.h"

namespace heddle::testing {
namespace {

void multiply(Program& program, graph::TensorId id, double by) {
  if (id == graph::kNone) return;
  float now = 0;
  std::memcpy(&now, program.memory.at(program.graph[id].uid).data(), sizeof now);
  program.set(id, by * static_cast<double>(now), 0);
}

// Scales are whatever a program's history gave: negative, 0, and so small or large that results
// vanish or saturate. Not those of weights, which saturate in the definition alone.
constexpr int64_t kScales = 9;
Program forward_of_scales(Random& random, int64_t number, bool for_hopper) {
  Program program = random_sdpa_fp8(random, {.for_hopper = for_hopper});
  const auto& op = std::get<graph::SdpaFp8>(program.graph.nodes[0].op);
  constexpr double kOfQ[kScales] = {-1, 1, 1, 1, 1, 1, -40, 1, 1},
                   kOfK[kScales] = {1, 0, 1, 1, 1, 1, 1, -1, 1},
                   kOfV[kScales] = {1, 1, -1, 0, 1e6, 1e-30, 1e-6, 1, 1},
                   kOfO[kScales] = {1, 1, 1, 1, 1, 1e30, 1, -1e5, 1e-6};
  multiply(program, op.descale_q, kOfQ[number]);
  multiply(program, op.descale_k, kOfK[number]);
  multiply(program, op.descale_v, kOfV[number]);
  multiply(program, op.scale_o, kOfO[number]);
  return program;
}
/// A descale of Q, K or V is not 0: docs/graph-text-form.md.
Program backward_of_scales(Random& random, int64_t number, bool for_hopper) {
  Program program = random_sdpa_fp8_backward(random, {.for_hopper = for_hopper});
  const auto& op = std::get<graph::SdpaFp8Backward>(program.graph.nodes[0].op);
  constexpr double kOfDo[kScales] = {-1, 1, 0, 1, 1e6, 1e-6, 1, 1, -1},
                   kOfV[kScales] = {1, -1, 1, 1, 1e-6, 1, 1, 1, -1},
                   kOfDp[kScales] = {1, 1, 1, 1, 1, 1e6, 1, 1, 1},
                   kOfDq[kScales] = {1, 1, 1, 0, 1, 1e4, -1e6, 1, 1};
  multiply(program, op.descale_d_o, kOfDo[number]);
  multiply(program, op.descale_v, kOfV[number]);
  multiply(program, op.descale_o, kOfV[number]);
  multiply(program, op.scale_d_p, kOfDp[number]);
  multiply(program, op.descale_d_p, 1 / kOfDp[number]);
  multiply(program, op.scale_d_q, kOfDq[number]);
  return program;
}

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
TEST_F(Fp8, ForwardOfScalesOfAnySignMatchesTheDefinition) {
  for (const bool for_hopper : {true, false})
    run([=](Random& random, int64_t n) { return forward_of_scales(random, n, for_hopper); },
        kScales, 1);
}
TEST_F(Fp8, BackwardOfScalesOfAnySignMatchesTheDefinition) {
  for (const bool for_hopper : {true, false})
    run([=](Random& random, int64_t n) { return backward_of_scales(random, n, for_hopper); },
        kScales, 1);
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
