// A device's plans, kept by their graph's text, so that a call of known shapes and options plans
// nothing.
#pragma once

#include <functional>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>

#include "plan.h"

namespace heddle::elixir {

class PlanCache {
 public:
  explicit PlanCache(heddle_device device) : device_(device) {}

  /// The plan of a text; null if there is none.
  PlanReference find(std::string_view text);
  /// The plan of a text, made if there is none.
  Result<PlanReference> find_or_make(ErlNifResourceType* type, std::string_view text);

 private:
  /// Shapes of a program are few; those of one whose lengths keep changing must not pile up.
  static constexpr size_t kMost = 1024;

  struct Hash : std::hash<std::string_view> {
    using is_transparent = void;
  };
  using Plans = std::unordered_map<std::string, PlanReference, Hash, std::equal_to<>>;

  const heddle_device device_;
  std::mutex mutex_;
  Plans plans_;
};

}  // namespace heddle::elixir
