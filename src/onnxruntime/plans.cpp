#include "onnxruntime/plans.h"

#include "onnxruntime/element_types.h"

namespace heddle::onnxruntime {

Result<std::shared_ptr<const Plan>> plan_of(Recipe recipe, Inputs inputs, const Wanted& wanted) {
  auto made = std::make_shared<Plan>();
  heddle_plan* plan;
  HEDDLE_TRY(status_of(heddle_plan_create(recipe.graph.get(), HEDDLE_CPU, &plan)));
  made->plan.reset(plan);
  made->workspace_bytes = heddle_plan_workspace_bytes(plan);
  for (const auto list : {heddle_plan_inputs, heddle_plan_outputs}) {
    const int64_t* uids;
    size_t count;
    HEDDLE_TRY(status_of(list(plan, &uids, &count)));
    made->uids.insert(made->uids.end(), uids, uids + count);
  }
  made->same = std::move(recipe.same);
  made->outputs.resize(wanted.size());
  for (size_t n = 0; n < wanted.size(); ++n) {
    if (wanted[n]) made->outputs[n].dims = recipe.output_dims[n];
  }
  for (const int64_t uid : made->uids) {
    if (uid < uid_of_output(0)) continue;
    heddle_tensor tensor;
    HEDDLE_TRY(status_of(heddle_plan_tensor(plan, uid, &tensor)));
    made->outputs[static_cast<size_t>(uid - uid_of_output(0))].dtype = data_type(tensor.dtype);
  }
  for (const Recipe::Same& same : made->same)
    made->outputs[static_cast<size_t>(same.output)].dtype =
        *inputs[static_cast<size_t>(same.input)].dtype;
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
