// The options that `heddle bench gqa` and `heddle profile gqa` share.
#pragma once

#include <CLI/App.hpp>
#include <string>

#include "tools/gqa_benchmark.h"

namespace heddle::tools {

struct GqaOptions {
  int64_t batch = 1, heads = 32, kv_heads = 8, head_size = 128;
  int threads = 0;
  std::string device = "cpu";

  GqaCell cell() const {
    return {.batch = batch, .heads = heads, .kv_heads = kv_heads, .head_size = head_size};
  }
};
void add_gqa_options(CLI::App& command, GqaOptions& options);

/// The names of kGqaCaches.
std::vector<std::string> gqa_cache_names();
const GqaCache& gqa_cache(std::string_view name);

/// The path alone, without its reason.
std::string path_word(const std::string& path);

}  // namespace heddle::tools
