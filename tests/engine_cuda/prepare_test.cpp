// What prepare() compiles, plan() need not.
#include <cstdlib>
#include <functional>
#include <thread>

#include "engine/cuda/engine.h"
#include "engine_cuda/fake_machine.h"
#include "kernels/cases.h"

namespace heddle::engine::cuda {
namespace {

using Preparation = FakeMachine;

/// Plans `problem` once it is prepared.
void expect_prepared(const problem::Problem& problem,
                     const std::function<int64_t()>& compilations) {
  const problem::Problem* const problems[] = {&problem};
  const Status prepared = cuda_engine().prepare(problems);
  ASSERT_TRUE(prepared.is_ok()) << prepared.message();
  const int64_t before = compilations();
  const auto plan = cuda_engine().plan(problem);
  ASSERT_TRUE(plan.is_ok()) << plan.status().message();
  EXPECT_EQ(compilations(), before) << (*plan)->description();
}

TEST_F(Preparation, APlanOfAPreparedProblemCompilesNothing) {
  setenv("HEDDLE_CACHE_DIR", "", 1);
  const auto compiled = [this] { return compilations(); };
  for (const char* capability : {"90", "80"}) {
    setenv("FAKE_CUDA_CAPABILITY", capability, 1);
    for (int dim : {56, 120, 248}) {  // of no other test
      for (DataType dtype : {DataType::f16, DataType::f32}) {
        for (int feature = -1; feature <= static_cast<int>(Feature::rope_leading); ++feature) {
          Case c{.dtype = dtype, .qk_dim = dim, .v_dim = dim, .length = 320};
          if (feature >= 0) c.features.push_back(static_cast<Feature>(feature));
          SCOPED_TRACE(title(c) + " on " + capability);
          const problem::AttentionProblem forward = forward_of(c);
          expect_prepared(forward, compiled);
          if (!c.has_backward() || c.has(Feature::block_mask) || forward.structure.q_rope) continue;
          expect_prepared(backward_of(c), compiled);
        }
      }
    }
  }
  EXPECT_GT(compilations(), 0);
}

TEST_F(Preparation, PreparedProblemsCompileAtOnce) {
  if (std::thread::hardware_concurrency() < 2) GTEST_SKIP() << "one core compiles one at a time";
  setenv("HEDDLE_CACHE_DIR", "", 1);
  setenv("FAKE_NVRTC_AT_ONCE", "2", 1);
  const Case c{.qk_dim = 24, .v_dim = 24};
  const problem::Problem forward = forward_of(c), backward = backward_of(c);
  const problem::Problem* const problems[] = {&forward, &backward, &forward};
  const Status prepared = cuda_engine().prepare(problems);
  EXPECT_TRUE(prepared.is_ok()) << prepared.message();
  EXPECT_EQ(compilations(), 1 + 3);
}

TEST_F(Preparation, APreparationThatFailsSaysWhatPlanSays) {
  setenv("HEDDLE_CACHE_DIR", "", 1);
  const problem::Problem good = forward_of({.qk_dim = 32, .v_dim = 32}),
                         refused = backward_of({.features = {Feature::paged}});
  const auto prepare = [](const problem::Problem& one, const problem::Problem& other) {
    const problem::Problem* const problems[] = {&one, &other};
    return cuda_engine().prepare(problems);
  };
  EXPECT_EQ(prepare(good, refused).message(), cuda_engine().plan(refused).status().message());
  EXPECT_EQ(compilations(), 0);
  setenv("FAKE_NVRTC_FAILS", "1", 1);
  EXPECT_EQ(prepare(good, good).message(), cuda_engine().plan(good).status().message());
}

}  // namespace
}  // namespace heddle::engine::cuda
