#include "engine/cuda/target_engine.h"

#include <gtest/gtest.h>

#include "kernels/cases.h"
#include "kernels/lowered.h"
#include "support/environment.h"

namespace heddle::engine::cuda {
namespace {

std::shared_ptr<const Plan> plan(const Problem& problem, const char* architecture) {
  const auto plan = target_engine(*target_named(architecture))->plan(problem);
  EXPECT_TRUE(plan.is_ok()) << plan.status().message();
  return plan.is_ok() ? *plan : nullptr;
}

TEST(TargetEngine, SaysWhatItWouldLaunchAndWhatItPassedOver) {
  const testing::Environment nothing("HEDDLE_KERNELS", "");
  const Problem problem = forward_of({.features = {Feature::block_mask}});
  const Result<Lowering> lowering = lowered(problem, "sm_90a");
  ASSERT_TRUE(lowering.is_ok());
  const LoweredKernel& kernel = lowering->kernels.at(0);
  const auto made = plan(problem, "sm_90a");
  EXPECT_EQ(made->description(),
            fmt::format("{}\n  kernel attention_forward: {} threads, {} bytes of dynamic shared "
                        "memory\n  not Hopper forward: cuda: the Hopper kernel takes no block mask",
                        lowering->description, kernel.threads, kernel.shared_bytes));
}

TEST(TargetEngine, RunsNothing) {
  const auto made = plan(forward_of({}), "sm_80");
  EXPECT_EQ(made->execute({}, nullptr, nullptr).message(),
            "cuda: the plan is of an architecture, not of a device, and runs nothing");
  EXPECT_EQ(made->workspace_bytes(), 0);
}

TEST(TargetEngine, RefusesWithTheLastReason) {
  const auto refused =
      target_engine(*target_named("sm_80"))->plan(backward_of({.features = {Feature::paged}}));
  EXPECT_EQ(refused.status().message(),
            "attention backward: k is paged, which only the forward pass can read");
}

}  // namespace
}  // namespace heddle::engine::cuda
