#include "tools/gqa_options.h"

#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <algorithm>

namespace heddle::tools {

void add_gqa_options(CLI::App& command, GqaOptions& options) {
  command.add_option("--batch", options.batch, "Sequences (default: 1)")
      ->check(CLI::Range(1, 1 << 16));
  command.add_option("--heads", options.heads, "Query heads (default: 32)")
      ->check(CLI::Range(1, 1024));
  command
      .add_option("--kv-heads", options.kv_heads,
                  "Heads of keys and values; must divide those of queries (default: 8)")
      ->check(CLI::Range(1, 1024));
  command
      .add_option("--head-size", options.head_size, "A multiple of 16, for rotation (default: 128)")
      ->check(CLI::Range(16, 1024));
  command
      .add_option("--device", options.device,
                  "cpu, or cuda: the GPU, timed by events of its own (default: cpu)")
      ->check(CLI::IsMember({"cpu", "cuda"}));
  command
      .add_option("--threads", options.threads,
                  "How many processors to use, on a CPU (default: all)")
      ->check(CLI::Range(1, 4096));
}

std::vector<std::string> gqa_cache_names() {
  std::vector<std::string> names;
  for (const GqaCache& cache : kGqaCaches) names.emplace_back(cache.name);
  return names;
}

const GqaCache& gqa_cache(std::string_view name) {
  return *std::find_if(std::begin(kGqaCaches), std::end(kGqaCaches),
                       [&](const GqaCache& cache) { return cache.name == name; });
}

std::string path_word(const std::string& path) { return path.substr(0, path.find(':')); }

}  // namespace heddle::tools
