#include "engine/cuda/stages.h"

#include <algorithm>
#include <array>

#include "core/rounding.h"

namespace heddle::engine::cuda {
namespace {

constexpr int64_t kAlignment = 256;

class StagedPlan final : public QueuedPlan {
 public:
  StagedPlan(std::vector<std::shared_ptr<const QueuedPlan>> steps,
             std::vector<int64_t> temporary_at, int64_t scratch_at, int64_t bytes)
      : steps_(std::move(steps)),
        temporary_at_(std::move(temporary_at)),
        scratch_at_(scratch_at),
        bytes_(bytes) {}

  int64_t workspace_bytes() const override { return bytes_; }

  Status execute(std::span<void* const> buffers, void* workspace, Queue& queue) const override {
    char* const scratch = static_cast<char*>(workspace);
    std::array<void*, kMostOperands> all;
    auto end = std::copy(buffers.begin(), buffers.end(), all.begin());
    for (int64_t at : temporary_at_) *end++ = scratch + at;
    const std::span<void* const> operands(all.begin(), end);
    for (const auto& step : steps_) {
      HEDDLE_TRY(step->execute(operands, scratch + scratch_at_, queue));
    }
    return {};
  }

  std::string description() const override {
    std::string all;
    for (const auto& step : steps_) all += (all.empty() ? "" : "; ") + step->description();
    return all;
  }

 private:
  std::vector<std::shared_ptr<const QueuedPlan>> steps_;
  std::vector<int64_t> temporary_at_;
  int64_t scratch_at_;  ///< of the steps, which use it one after the other
  int64_t bytes_;
};

}  // namespace

Result<std::shared_ptr<const QueuedPlan>> plan_stages(const Stages& stages,
                                                      const PlanProblem& plan) {
  if (stages.operand_count > kMostOperands) {
    return error(Code::graph_not_supported,
                 "cuda: a problem in stages has {} operands; its plan takes at most {}",
                 stages.operand_count, kMostOperands);
  }
  std::vector<std::shared_ptr<const QueuedPlan>> steps;
  int64_t scratch = 0;
  for (const problem::Problem& problem : stages.steps) {
    HEDDLE_ASSIGN(std::shared_ptr<const QueuedPlan> step, plan(problem));
    scratch = std::max(scratch, step->workspace_bytes());
    steps.push_back(std::move(step));
  }
  std::vector<int64_t> temporary_at;
  int64_t at = 0;
  for (int64_t bytes : stages.temporary_bytes) {
    temporary_at.push_back(at);
    at += round_up(bytes, kAlignment);
  }
  return std::make_shared<const StagedPlan>(std::move(steps), std::move(temporary_at), at,
                                            at + scratch);
}

}  // namespace heddle::engine::cuda
