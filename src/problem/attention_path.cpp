#include "problem/attention_path.h"

#include "core/environment.h"

namespace heddle::problem {
namespace {

// A step of decoding is flash's too there, so that what switches flash off switches off both.
constexpr const char* kFlash[] = {"HEDDLE_DISABLE_FLASH_ATTENTION", "ORT_DISABLE_FLASH_ATTENTION",
                                  "ORT_GQA_DISABLE_FLASH_ATTENTION"};
constexpr const char* kDecode[] = {"HEDDLE_DISABLE_FLASH_DECODE", "ORT_DISABLE_FLASH_DECODE",
                                   kFlash[0], kFlash[1], kFlash[2]};
constexpr const char* kMemoryEfficient[] = {"HEDDLE_DISABLE_MEMORY_EFFICIENT_ATTENTION",
                                            "ORT_DISABLE_MEMORY_EFFICIENT_ATTENTION"};

}  // namespace

const char* name(AttentionPath path) {
  switch (path) {
    case AttentionPath::decode:
      return "decode";
    case AttentionPath::flash:
      return "flash";
    case AttentionPath::memory_efficient:
      return "memory_efficient";
  }
  return "";
}

std::span<const char* const> switches_of(AttentionPath path) {
  switch (path) {
    case AttentionPath::decode:
      return kDecode;
    case AttentionPath::flash:
      return kFlash;
    case AttentionPath::memory_efficient:
      return kMemoryEfficient;
  }
  return {};
}

Result<AllowedPaths> AllowedPaths::of_environment() {
  AllowedPaths paths;
  for (const AttentionPath path : kAttentionPaths) {
    const char*& off_by = paths.off_by_[static_cast<size_t>(path)];
    for (const char* variable : switches_of(path)) {
      HEDDLE_ASSIGN(const bool is_off, environment::is_on(variable));
      if (is_off && !off_by) off_by = variable;
    }
  }
  return paths;
}

std::string AllowedPaths::words() const {
  std::string words;
  for (const AttentionPath path : kAttentionPaths) {
    if (has(path)) continue;
    words += fmt::format("{}{} by {}=1", words.empty() ? "" : ", ", name(path), off_by(path));
  }
  return words;
}

}  // namespace heddle::problem
