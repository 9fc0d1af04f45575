#include "plan_cache.h"

namespace heddle::elixir {

PlanCache::~PlanCache() { clear(); }

void PlanCache::clear() {
  for (const auto& [text, plan] : plans_) enif_release_resource(plan);
  plans_.clear();
}

Result<Plan*> PlanCache::find_or_make(ErlNifResourceType* type, std::string_view text) {
  {
    const std::lock_guard lock(mutex_);
    if (const auto found = plans_.find(text); found != plans_.end()) {
      enif_keep_resource(found->second);
      return found->second;
    }
  }
  // Planned without the lock: of two that plan the same at once, one is kept.
  Result<Plan*> made = make_plan(type, text, HEDDLE_CPU);
  if (Plan* const* plan = std::get_if<Plan*>(&made)) {
    const std::lock_guard lock(mutex_);
    if (plans_.size() >= kMost) clear();
    if (plans_.emplace(text, *plan).second) enif_keep_resource(*plan);
  }
  return made;
}

}  // namespace heddle::elixir
