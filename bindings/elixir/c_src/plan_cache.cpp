#include "plan_cache.h"

namespace heddle::elixir {

Result<PlanReference> PlanCache::find_or_make(ErlNifResourceType* type, std::string_view text) {
  {
    const std::lock_guard lock(mutex_);
    if (const auto found = plans_.find(text); found != plans_.end()) return share(found->second);
  }
  // Planned without the lock: of two that plan the same at once, one is kept.
  Result<PlanReference> made = make_plan(type, text, HEDDLE_CPU);
  if (const auto* plan = std::get_if<PlanReference>(&made)) {
    const std::lock_guard lock(mutex_);
    if (plans_.size() >= kMost) plans_.clear();
    plans_.try_emplace(std::string(text), share(*plan));
  }
  return made;
}

}  // namespace heddle::elixir
