// Plans kept by their graph's text, so that a call of known shapes and options plans nothing.
#pragma once

#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <string_view>

#include "plan.h"

namespace heddle::elixir {

class PlanCache {
 public:
  /// The plan of a text, made if there is none.
  Result<PlanReference> find_or_make(ErlNifResourceType* type, std::string_view text);

 private:
  /// Shapes of a program are few; those of one whose lengths keep changing must not pile up.
  static constexpr size_t kMost = 1024;

  std::mutex mutex_;
  std::map<std::string, PlanReference, std::less<>> plans_;
};

}  // namespace heddle::elixir
