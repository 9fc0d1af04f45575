#include "engine/cuda/f32_plan.h"

#include <fmt/format.h>

#include <algorithm>

namespace heddle::engine::cuda {
namespace {

class F32Plan final : public QueuedPlan {
 public:
  F32Plan(std::shared_ptr<const QueuedPlan> pairs, std::shared_ptr<const QueuedPlan> general)
      : pairs_(std::move(pairs)), general_(std::move(general)) {}

  int64_t workspace_bytes() const override {
    return std::max(pairs_->workspace_bytes(), general_->workspace_bytes());
  }

  Status execute(std::span<void* const> buffers, void* workspace, Queue& queue) const override {
    HEDDLE_TRY(pairs_->execute(buffers, workspace, queue));
    return general_->execute(buffers, workspace, queue);
  }

  std::string description() const override {
    return fmt::format("{}; of values beyond pairs {}", pairs_->description(),
                       general_->description());
  }

 private:
  std::shared_ptr<const QueuedPlan> pairs_, general_;
};

}  // namespace

std::shared_ptr<const QueuedPlan> plan_f32(std::shared_ptr<const QueuedPlan> pairs,
                                           std::shared_ptr<const QueuedPlan> general) {
  return std::make_shared<const F32Plan>(std::move(pairs), std::move(general));
}

}  // namespace heddle::engine::cuda
