#include "plan_cache.h"

namespace heddle::elixir {

PlanReference PlanCache::find(std::string_view text) {
  const std::lock_guard lock(mutex_);
  const auto found = plans_.find(text);
  return found == plans_.end() ? nullptr : share(found->second);
}

Result<PlanReference> PlanCache::find_or_make(ErlNifResourceType* type, std::string_view text) {
  if (PlanReference found = find(text)) return found;
  // Planned without the lock: of two that plan the same at once, one is kept.
  Result<PlanReference> made = make_plan(type, text, device_);
  if (const auto* plan = std::get_if<PlanReference>(&made)) {
    Plans outlived;  // freed without the lock, which schedulers of the VM may wait for
    const std::lock_guard lock(mutex_);
    if (plans_.size() >= kMost) plans_.swap(outlived);
    plans_.try_emplace(std::string(text), share(*plan));
  }
  return made;
}

}  // namespace heddle::elixir
