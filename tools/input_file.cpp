#include "tools/input_file.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace heddle::tools {
namespace {

Status unreadable(const std::string& path) {
  return error(Code::io_failed, "{} cannot be read: {}", path, std::strerror(errno));
}

/// As a reader of the command's messages knows it.
std::string name_of(const std::string& path) { return path == "-" ? "standard input" : path; }

}  // namespace

void CloseFile::operator()(std::FILE* file) const {
  if (file != stdin) std::fclose(file);
}

Result<InputFile> open_input(const std::string& path, int64_t most_bytes) {
  InputFile input;
  input.stream.reset(path == "-" ? stdin : std::fopen(path.c_str(), "rbe"));
  struct stat info {};
  if (!input.stream || ::fstat(::fileno(input.stream.get()), &info) != 0)
    return unreadable(name_of(path));
  if (S_ISDIR(info.st_mode)) {
    errno = EISDIR;
    return unreadable(name_of(path));
  }
  const bool is_terminal = ::isatty(::fileno(input.stream.get())) != 0;
  if (S_ISBLK(info.st_mode) || (S_ISCHR(info.st_mode) && !is_terminal))
    return error(Code::io_failed, "{} is a device, expected a file or a pipe", name_of(path));
  if (!S_ISREG(info.st_mode)) return input;
  if (info.st_size > most_bytes)
    return error(Code::io_failed, "{} has {} bytes, expected at most {}", name_of(path),
                 info.st_size, most_bytes);
  input.bytes = info.st_size;
  return input;
}

Result<std::string> read_text_file(const std::string& path, int64_t most_bytes) {
  HEDDLE_ASSIGN(const InputFile input, open_input(path, most_bytes));
  constexpr int64_t kFirst = 1 << 20;
  const auto most = static_cast<size_t>(most_bytes);
  std::string text;
  text.reserve(static_cast<size_t>(input.bytes.value_or(kFirst)) + 1);  // where the end is met
  size_t have = 0;
  do {
    text.resize(std::min(most, std::max(text.capacity(), 2 * have)));
    have += std::fread(text.data() + have, 1, text.size() - have, input.stream.get());
  } while (have == text.size() && have < most);
  const bool has_more = have == most && std::fgetc(input.stream.get()) != EOF;
  if (std::ferror(input.stream.get()) != 0) return unreadable(name_of(path));
  if (has_more)
    return error(Code::io_failed, "{} has more than {} bytes, expected at most that many",
                 name_of(path), most_bytes);
  text.resize(have);
  return text;
}

std::string text_file_help(std::string_view what, int64_t most_bytes) {
  const int64_t mebibytes = most_bytes >> 20;
  const std::string most = mebibytes % 1024 == 0 ? fmt::format("{} GiB", mebibytes / 1024)
                                                 : fmt::format("{} MiB", mebibytes);
  return fmt::format("{}, of at most {}; - for standard input", what, most);
}

}  // namespace heddle::tools
