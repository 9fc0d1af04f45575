// The subcommands of `heddle`. Each adds itself with its options and examples; when it is the one
// that was asked for, its callback sets the exit status.
#pragma once

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <cstdint>
#include <string>

#include "core/status.h"
#include "engine/devices.h"

namespace heddle::tools {

enum ExitStatus : int {
  kDone = 0,
  kBadInput = 2,  ///< also bad usage, and files that cannot be read or written
  kVerificationFailed = 3,
};

/// Prints the sentence on standard error.
ExitStatus complain(const Status& failure);
/// Writes to a file, or to standard output if `path` is "-".
Status write_text(const std::string& text, const std::string& path);

/// An option that names a file to be written. Nothing is no name: taken for an option not given,
/// the file was left out in silence.
void add_file(CLI::App& command, const std::string& option, std::string& path,
              const std::string& help);
/// --device cpu or cuda: whose engines a module's calls are for.
void add_device(CLI::App& command, engine::Device& device);
/// --seed: a whole number that is not negative.
void add_seed(CLI::App& command, uint64_t& seed, const std::string& help);

void add_fuse(CLI::App& app, int& status);
void add_explain(CLI::App& app, int& status);
void add_run(CLI::App& app, int& status);
void add_doctor(CLI::App& app, int& status);
void add_bench(CLI::App& app, int& status);
void add_bench_gqa(CLI::App& bench, int& status);
void add_profile(CLI::App& app, int& status);
void add_cache(CLI::App& app, int& status);
void add_prebuild(CLI::App& app, int& status);

}  // namespace heddle::tools
