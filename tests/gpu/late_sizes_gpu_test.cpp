// Plans at sizes that come at an execution, on the CUDA engine: the results are the definition's.
#include <atomic>

#include "api/shapes_of.h"
#include "gpu/attention_options.h"
#include "gpu/gpu_test.h"
#include "graph/validate.h"
#include "support/smaller.h"

namespace heddle::testing {
namespace {

class LateSizesOnGpu : public OnGpu {
 protected:
  /// Problems drawn at their largest, planned, and executed at three smaller sizes each.
  void run_smaller(const Draw& draw) {
    constexpr int64_t kProblems = 40, kSizes = 3;
    std::atomic<int64_t> served = 0, refused = 0;
    at_once(kProblems, [&](int64_t seed) {
      Random random(static_cast<uint64_t>(seed));
      Built built = build(draw(random));
      if (!built.executable.is_ok()) return;
      const api::Executable& planned = **built.executable;
      for (int64_t n = 0; n < kSizes; ++n) {
        Built late{smaller(random, built.program), built.io, built.executable};
        if (!graph::validate(late.program.graph).is_ok()) continue;
        late.executable = planned.resized(shapes_of(planned, late.program.graph, n == 0));
        if (!late.executable.is_ok()) {
          ++refused;
          EXPECT_EQ(late.executable.status().code(), Code::graph_not_supported);
          continue;
        }
        ++served;
        execute(late);
        EXPECT_TRUE(matches_definition(late)) << planned.description();
      }
    });
    EXPECT_GT(served, kProblems);
    EXPECT_LT(refused, served / 10);
  }
};

TEST_F(LateSizesOnGpu, ForwardMatchesTheDefinition) {
  run_smaller([](Random& random) { return random_sdpa(random, gpu_options()); });
}

TEST_F(LateSizesOnGpu, ForwardOfAlignedTensorsMatchesTheDefinition) {
  run_smaller([](Random& random) { return random_sdpa(random, aligned_options()); });
}

TEST_F(LateSizesOnGpu, ForwardWithScoreTilesMatchesTheDefinition) {
  run_smaller([](Random& random) { return random_sdpa(random, score_tile_options()); });
}

TEST_F(LateSizesOnGpu, BackwardOfAlignedTensorsMatchesTheDefinition) {
  run_smaller(
      [](Random& random) { return random_sdpa_backward(random, aligned_backward_options()); });
}

TEST_F(LateSizesOnGpu, F32MatchesTheDefinition) {
  run_smaller([](Random& random) { return random_sdpa(random, f32_options()); });
}

}  // namespace
}  // namespace heddle::testing
