#include "tools/command.h"

#include <fmt/format.h>

#include <fstream>
#include <iostream>

namespace heddle::tools {

ExitStatus complain(const Status& failure) {
  fmt::print(stderr, "heddle: {}\n", failure.message());
  return kBadInput;
}

Status write_text(const std::string& text, const std::string& path) {
  if (path == "-") {
    std::cout << text << std::flush;
    return std::cout ? Status() : error(Code::io_failed, "standard output cannot be written");
  }
  std::ofstream file(path, std::ios::trunc);
  file << text;
  file.close();
  return file ? Status() : error(Code::io_failed, "{} cannot be written", path);
}

}  // namespace heddle::tools
