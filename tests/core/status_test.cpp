// Errors as values.
#include "core/status.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace heddle {
namespace {

TEST(Status, AMessageAsLongAsIsAllowedStaysWhole) {
  const std::string longest(Status::kMostMessageBytes, 'x');
  EXPECT_EQ(Status(Code::invalid_value, longest).message(), longest);
}

TEST(Status, OfALongerMessageTheMiddleIsLeftOut) {
  const std::string name(1'000'000, 'x');
  const std::string message =
      error(Code::invalid_value, "line 1: there is no op \"{}\", expected sdpa", name).message();
  EXPECT_LE(message.size(), Status::kMostMessageBytes);
  EXPECT_TRUE(message.starts_with("line 1: there is no op \"xxx"));
  EXPECT_TRUE(message.ends_with("xxx\", expected sdpa"));
  const size_t kept = static_cast<size_t>(std::count(message.begin(), message.end(), 'x')) - 1;
  EXPECT_NE(message.find(fmt::format("xxx [{} bytes are left out] xxx", name.size() - kept)),
            std::string::npos);
}

TEST(Status, NoCharacterIsCut) {
  for (const char* shift : {"", "x", "xx"}) {
    std::string message = shift;
    while (message.size() <= 2 * Status::kMostMessageBytes) message += "\u20ac";
    std::string kept = Status(Code::invalid_value, message).message();
    const size_t from = kept.find(" ["), to = kept.find("] ") + 2;
    kept.erase(from, to - from);
    EXPECT_EQ((kept.size() - std::string(shift).size()) % 3, 0u);
    EXPECT_TRUE(message.starts_with(kept));
  }
}

}  // namespace
}  // namespace heddle
