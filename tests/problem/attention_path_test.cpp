// Which paths the environment leaves, by each of the variables that switch one off.
#include "problem/attention_path.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "core/environment.h"
#include "support/environment.h"

namespace heddle::problem {
namespace {

using testing::Environment;

TEST(AllowedPaths, AreAllOfThem) {
  const Result<AllowedPaths> paths = AllowedPaths::of_environment();
  ASSERT_TRUE(paths.is_ok());
  for (const AttentionPath path : kAttentionPaths) EXPECT_TRUE(paths->has(path)) << name(path);
  EXPECT_EQ(paths->words(), "");
}

TEST(AllowedPaths, LackWhatAVariableSwitchesOff) {
  for (const AttentionPath path : kAttentionPaths) {
    for (const char* variable : switches_of(path)) {
      const Environment off(variable, "1");
      const Result<AllowedPaths> paths = AllowedPaths::of_environment();
      ASSERT_TRUE(paths.is_ok());
      EXPECT_STREQ(paths->off_by(path), variable);
      for (const AttentionPath other : kAttentionPaths) {
        const auto switches = switches_of(other);
        EXPECT_EQ(paths->has(other),
                  std::find(switches.begin(), switches.end(), variable) == switches.end());
      }
    }
  }
}

// What switches flash off forces memory_efficient: a step of decoding is flash's too.
TEST(AllowedPaths, LackDecodeWithoutFlash) {
  const Environment off("ORT_DISABLE_FLASH_ATTENTION", "1");
  const Result<AllowedPaths> paths = AllowedPaths::of_environment();
  EXPECT_EQ(paths->words(),
            "decode by ORT_DISABLE_FLASH_ATTENTION=1, flash by ORT_DISABLE_FLASH_ATTENTION=1");
}

TEST(AllowedPaths, TakeZeroAndNothingForNotSet) {
  for (const char* value : {"0", ""}) {
    const Environment variable("HEDDLE_DISABLE_FLASH_DECODE", value);
    EXPECT_TRUE(AllowedPaths::of_environment()->has(AttentionPath::decode)) << value;
  }
}

TEST(AllowedPaths, RefuseOtherValues) {
  for (const char* value : {"yes", "2", " 1", "true", "01"}) {
    const Environment variable("ORT_DISABLE_MEMORY_EFFICIENT_ATTENTION", value);
    EXPECT_EQ(
        AllowedPaths::of_environment().status().message(),
        std::string("ORT_DISABLE_MEMORY_EFFICIENT_ATTENTION is '") + value + "', expected 0 or 1");
  }
}

TEST(Environment, HasEverySwitch) {
  for (const AttentionPath path : kAttentionPaths) {
    for (const std::string_view wanted : switches_of(path)) {
      EXPECT_TRUE(std::ranges::any_of(environment::variables(), [&](const auto& variable) {
        return variable.name == wanted;
      })) << wanted;
    }
  }
}

}  // namespace
}  // namespace heddle::problem
