#include "api/plan_cache.h"

#include <mutex>

#include "graph/text.h"

namespace heddle::api {

Result<std::shared_ptr<const Executable>> PlanCache::find_or_build(std::string_view text) {
  const int ordinal = engine::ordinal(device_);
  {
    std::shared_lock lock(mutex_);
    if (const auto part = executables_.find(ordinal); part != executables_.end()) {
      if (const auto found = part->second.find(text); found != part->second.end())
        return found->second;
    }
  }
  // Built without the lock: calls of other graphs go on, and two first calls of one graph may both
  // build it.
  HEDDLE_ASSIGN(graph::Graph graph, graph::read_text(text));
  HEDDLE_ASSIGN(std::shared_ptr<const Executable> built,
                Executable::build(std::move(graph), engine::engines(device_)));
  Executables forgotten;  // freed without the lock as well
  std::unique_lock lock(mutex_);
  Executables& part = executables_[ordinal];
  if (part.size() >= kCapacity) part.swap(forgotten);
  return part.emplace(std::string(text), std::move(built)).first->second;
}

}  // namespace heddle::api
