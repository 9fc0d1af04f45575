// A progress bar on standard error, for work that takes more than a moment.
#pragma once

#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>
#include <string>
#include <string_view>

namespace heddle::tools {

/// Silent unless standard error is a terminal. Erases itself at the end.
class Progress {
 public:
  explicit Progress(size_t total) : total_(total), shown_(isatty(STDERR_FILENO) != 0) {}
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;
  ~Progress() {
    if (shown_) fmt::print(stderr, "\r{:78}\r", "");
  }

  /// `done` of the total is done and `what` is next.
  void show(size_t done, std::string_view what) const {
    if (!shown_) return;
    constexpr size_t kWidth = 24;
    const size_t filled = total_ == 0 ? kWidth : kWidth * done / total_;
    fmt::print(stderr, "\r[{}{}] {}/{}  {:<40.40}", std::string(filled, '#'),
               std::string(kWidth - filled, '.'), done, total_, what);
    std::fflush(stderr);
  }

 private:
  size_t total_;
  bool shown_;
};

}  // namespace heddle::tools
