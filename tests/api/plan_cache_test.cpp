#include "api/plan_cache.h"

#include <gtest/gtest.h>

#include "api/count_allocations.h"

namespace heddle::api {
namespace {

/// rms_norm of so many rows.
std::string norm_of(size_t rows) {
  return fmt::format(
      R"({{"heddle_graph":1,"io_dtype":"f32","compute_dtype":"f32","tensors":[)"
      R"({{"uid":1,"name":"x","dims":[{},16]}},{{"uid":2,"name":"w","dims":[1,16]}},)"
      R"({{"uid":3,"name":"e","dims":[1,1],"constant":1e-5}},{{"uid":4,"name":"y"}}],)"
      R"("nodes":[{{"op":"rms_norm","name":"n","x":1,"scale":2,"epsilon":3,"y":4}}]}})",
      rows);
}

TEST(PlanCache, GraphsWithoutEndLeaveMemoryLevel) {
  PlanCache plans(engine::Device::cpu);
  const auto used = plans.find_or_build(norm_of(1));
  ASSERT_TRUE(used.is_ok()) << used.status().message();
  const std::weak_ptr<const Executable> unused = *plans.find_or_build(norm_of(2));
  EXPECT_EQ(*plans.find_or_build(norm_of(2)), unused.lock());
  const auto fill = [&](size_t first) {
    for (size_t n = 0; n < PlanCache::kCapacity; ++n)
      ASSERT_TRUE(plans.find_or_build(norm_of(first + n)).is_ok());
  };
  fill(3);
  EXPECT_TRUE(unused.expired());
  EXPECT_EQ((*used)->inputs().size(), 2u) << "what is in use lives on";
  const int64_t live = heddle::testing::live_bytes();
  for (size_t turn = 1; turn <= 3; ++turn) fill(turn * PlanCache::kCapacity + 3);
  EXPECT_LT(heddle::testing::live_bytes(), live + live / 2);
}

}  // namespace
}  // namespace heddle::api
