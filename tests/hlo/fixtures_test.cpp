// Every fixture reads, and comes back character for character.
#include "fixtures.h"

#include <gtest/gtest.h>

#include "hlo/read.h"
#include "hlo/write.h"

namespace heddle::hlo {
namespace {

class Fixture : public testing::TestWithParam<std::string> {};

TEST_P(Fixture, IsWrittenAsItWasRead) {
  const std::string text = file_text(GetParam());
  auto module = read_text(text, GetParam());
  ASSERT_TRUE(module) << module.status().message();
  EXPECT_EQ(write_text(**module), text);
}

TEST_P(Fixture, ReadsBackToAnEqualModule) {
  auto module = read_file(GetParam());
  ASSERT_TRUE(module) << module.status().message();
  auto again = read_text(write_text(**module));
  ASSERT_TRUE(again) << again.status().message();
  std::string difference;
  EXPECT_TRUE(equal(**module, **again, &difference)) << difference;
}

TEST_P(Fixture, CopiesToAnEqualModule) {
  auto module = read_file(GetParam());
  ASSERT_TRUE(module) << module.status().message();
  const std::unique_ptr<Module> copy = (*module)->copy();
  std::string difference;
  EXPECT_TRUE(equal(**module, *copy, &difference)) << difference;
  EXPECT_EQ(copy->verify().message(), "");
}

TEST_P(Fixture, StaysSoundWithoutItsDeadInstructions) {
  auto module = read_file(GetParam());
  ASSERT_TRUE(module) << module.status().message();
  const int before = (*module)->instruction_count();
  const int removed = (*module)->remove_dead();
  EXPECT_EQ((*module)->verify().message(), "");
  EXPECT_EQ((*module)->instruction_count(), before - removed);
}

// Cut anywhere, a module is refused with a place: nothing crashes, nothing half-read comes out.
TEST_P(Fixture, IsRefusedWhenTruncated) {
  const std::string text = file_text(GetParam());
  const size_t step = text.size() / 150 + 1;
  for (size_t length = 0; length < text.size(); length += step) {
    const std::string cut = text.substr(0, length);
    // After a closed computation the text is a module again.
    if (cut.find_last_not_of("\n") != std::string::npos && cut[cut.find_last_not_of("\n")] == '}') {
      continue;
    }
    auto module = read_text(cut, "cut");
    ASSERT_FALSE(module) << length;
    EXPECT_EQ(module.status().code(), Code::malformed_input);
    EXPECT_EQ(module.status().message().substr(0, 4), "cut:");
  }
}

INSTANTIATE_TEST_SUITE_P(Modules, Fixture, testing::ValuesIn(fixture_paths()),
                         [](const auto& info) { return fixture_name(info.param); });

}  // namespace
}  // namespace heddle::hlo
