#include "tools/command.h"

#include <fmt/format.h>

#include <cerrno>
#include <charconv>
#include <cstring>
#include <fstream>
#include <iostream>
#include <system_error>

namespace heddle::tools {
namespace {

/// Why a stream failed, where the system says: errno is cleared before.
std::string reason() { return errno == 0 ? "" : fmt::format(": {}", std::strerror(errno)); }

}  // namespace

ExitStatus complain(const Status& failure) {
  fmt::print(stderr, "heddle: {}\n", failure.message());
  return kBadInput;
}

Status write_text(const std::string& text, const std::string& path) {
  if (path == "-") {
    std::cout << text << std::flush;
    return std::cout ? Status() : error(Code::io_failed, "standard output cannot be written");
  }
  errno = 0;
  std::ofstream file(path, std::ios::trunc);
  file << text;
  file.close();
  if (file) return {};
  return error(Code::io_failed, "{} cannot be written{}", path, reason());
}

void add_file(CLI::App& command, const std::string& option, std::string& path,
              const std::string& help) {
  const auto check = [](const std::string& name) -> std::string {
    return name.empty() ? "it is empty, expected the name of a file" : "";
  };
  command.add_option(option, path, help)->check(CLI::Validator(check, "", "file"));
}

void add_device(CLI::App& command, engine::Device& device) {
  const auto set = [&device](const std::string& name) {
    device = name == "cuda" ? engine::Device::cuda : engine::Device::cpu;
  };
  command
      .add_option_function<std::string>("--device", set,
                                        "Whose engines a module's calls are for: cpu or cuda (cpu)")
      ->check(CLI::IsMember({"cpu", "cuda"}));
}

void add_seed(CLI::App& command, uint64_t& seed, const std::string& help) {
  // Conversion alone takes -1 for the largest number.
  const auto read = [&seed](const std::string& text) -> std::string {
    const char* end = text.data() + text.size();
    const auto [stop, problem] = std::from_chars(text.data(), end, seed);
    if (problem == std::errc() && stop == end) return "";
    return fmt::format("the seed is '{}', a whole number from 0 to {} is allowed", text,
                       UINT64_MAX);
  };
  command.add_option("--seed", seed, help)->check(CLI::Validator(read, "UINT", "seed"));
}

}  // namespace heddle::tools
