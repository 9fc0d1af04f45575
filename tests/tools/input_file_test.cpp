#include "tools/input_file.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <fstream>
#include <thread>

namespace heddle::tools {
namespace {

class InputFileTest : public testing::Test {
 protected:
  InputFileTest()
      : path_(testing::TempDir() + "heddle_input_" +
              testing::UnitTest::GetInstance()->current_test_info()->name()) {
    std::remove(path_.c_str());
  }
  ~InputFileTest() override { std::remove(path_.c_str()); }

  std::string path_;
};

TEST_F(InputFileTest, AFileMayBeAsLargeAsAllowed) {
  const std::string text(3 << 20, 'x');
  for (const size_t size : {size_t{0}, size_t{5}, size_t{1} << 20, text.size()}) {
    std::ofstream(path_, std::ios::trunc) << text.substr(0, size);
    const Result<std::string> read = read_text_file(path_, static_cast<int64_t>(size));
    ASSERT_TRUE(read.is_ok()) << read.status().message();
    EXPECT_EQ(*read, text.substr(0, size));
  }
  EXPECT_EQ(read_text_file(path_, 3'000'000).status().message(),
            path_ + " has 3145728 bytes, expected at most 3000000");
}

// Its other end writes until nobody reads any more.
TEST_F(InputFileTest, APipeIsReadNoFurtherThanAllowed) {
  ASSERT_EQ(mkfifo(path_.c_str(), 0600), 0);
  constexpr int64_t kMost = 3'000'000;
  for (const int64_t more : {-1, 0, 1, 1'000'000'000}) {
    int64_t written = 0;
    std::jthread writer([&] {
      std::signal(SIGPIPE, SIG_IGN);
      std::FILE* const pipe = std::fopen(path_.c_str(), "wb");
      const std::string piece(1000, 'x');
      while (written < kMost + more) {
        const auto size = static_cast<size_t>(std::min<int64_t>(1000, kMost + more - written));
        if (std::fwrite(piece.data(), 1, size, pipe) != size) break;
        written += static_cast<int64_t>(size);
      }
      std::fclose(pipe);
    });
    const Result<std::string> read = read_text_file(path_, kMost);
    writer.join();
    if (more <= 0) {
      ASSERT_TRUE(read.is_ok()) << read.status().message();
      EXPECT_EQ(static_cast<int64_t>(read->size()), kMost + more);
    } else {
      EXPECT_EQ(read.status().message(),
                path_ + " has more than 3000000 bytes, expected at most that many");
      EXPECT_LT(written, 2 * kMost);
    }
  }
}

TEST_F(InputFileTest, WhatIsNoFileIsNamed) {
  EXPECT_EQ(read_text_file(path_, 1).status().message(),
            path_ + " cannot be read: No such file or directory");
  EXPECT_EQ(read_text_file("/tmp", 1).status().message(), "/tmp cannot be read: Is a directory");
  for (const std::string device : {"/dev/zero", "/dev/null"})
    EXPECT_EQ(read_text_file(device, 1).status().message(),
              device + " is a device, expected a file or a pipe");
}

TEST(TextFileHelp, SaysHowMuchIsRead) {
  EXPECT_EQ(text_file_help("A file", 16 << 20), "A file, of at most 16 MiB; - for standard input");
  EXPECT_EQ(text_file_help("A file", kMostModuleBytes),
            "A file, of at most 2 GiB; - for standard input");
}

}  // namespace
}  // namespace heddle::tools
