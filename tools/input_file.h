// Files that the command reads: nothing is read without an end, and nothing that is too large.
#pragma once

#include <cstdint>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "core/status.h"

namespace heddle::tools {

/// Of a module's text. XLA's own messages end at 2 GiB too.
inline constexpr int64_t kMostModuleBytes = int64_t{2} << 30;

struct CloseFile {
  void operator()(std::FILE* file) const;
};

struct InputFile {
  std::unique_ptr<std::FILE, CloseFile> stream;
  std::optional<int64_t> bytes;  ///< none of what has no size: a pipe, a terminal
};

/// Opens a file of at most `most_bytes`; standard input if `path` is "-". Devices are refused: they
/// tell no size, and most never end.
Result<InputFile> open_input(const std::string& path, int64_t most_bytes);

/// A whole file of at most `most_bytes`; standard input if `path` is "-".
Result<std::string> read_text_file(const std::string& path, int64_t most_bytes);

/// What --help says of an argument that is read by read_text_file.
std::string text_file_help(std::string_view what, int64_t most_bytes);

}  // namespace heddle::tools
