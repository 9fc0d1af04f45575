#include "onnxruntime/plans.h"

namespace heddle::onnxruntime {

Result<std::shared_ptr<const Plan>> plan_of(Recipe recipe, const Target& target) {
  if (target.device != HEDDLE_CPU && !recipe.on_host.empty()) {
    return error(Code::graph_not_supported,
                 "Heddle runs this on a CPU alone: {}. A session without CUDAExecutionProvider "
                 "takes it.",
                 recipe.on_host);
  }
  auto made = std::make_shared<Plan>();
  made->outputs = std::move(recipe.outputs);
  made->prepared_bytes = std::move(recipe.prepared_bytes);
  made->views = std::move(recipe.views);
  if (!recipe.graph) return std::shared_ptr<const Plan>(std::move(made));
  heddle_plan* plan;
  HEDDLE_TRY(status_of(
      target.architecture.empty()
          ? heddle_plan_create(recipe.graph.get(), target.device, &plan)
          : heddle_plan_create_for(recipe.graph.get(), target.architecture.c_str(), &plan)));
  made->plan.reset(plan);
  made->attention_paths = heddle_plan_attention_paths(plan);
  made->workspace_bytes = heddle_plan_workspace_bytes(plan);
  for (const auto list : {heddle_plan_inputs, heddle_plan_outputs}) {
    const int64_t* uids;
    size_t count;
    HEDDLE_TRY(status_of(list(plan, &uids, &count)));
    made->uids.insert(made->uids.end(), uids, uids + count);
  }
  return std::shared_ptr<const Plan>(std::move(made));
}

std::shared_ptr<const Plan> Plans::find(std::string_view key) {
  const std::lock_guard lock(mutex_);
  const auto found = by_key_.find(key);
  if (found == by_key_.end()) return nullptr;
  recent_.splice(recent_.begin(), recent_, found->second);
  return found->second->plan;
}

void Plans::keep(std::string_view key, std::shared_ptr<const Plan> plan) {
  std::list<Kept> forgotten;  // freed without the lock
  const std::lock_guard lock(mutex_);
  if (by_key_.contains(key)) return;
  recent_.push_front({std::string(key), std::move(plan)});
  by_key_.emplace(recent_.front().key, recent_.begin());
  if (recent_.size() <= kCapacity) return;
  by_key_.erase(recent_.back().key);
  forgotten.splice(forgotten.end(), recent_, std::prev(recent_.end()));
}

}  // namespace heddle::onnxruntime
