#include "engine/cuda/graphed_plan.h"

#include <mutex>

#include "engine/cuda/context.h"
#include "engine/cuda/launch_graph.h"

namespace heddle::engine::cuda {
namespace {

class GraphedPlan final : public Plan {
 public:
  GraphedPlan(const Driver& driver, CuDevice device, LoadedPlan plan,
              std::vector<problem::OperandType> operands)
      : driver_(driver), device_(device), plan_(std::move(plan)), operands_(std::move(operands)) {
    record();
  }
  /// By launches alone.
  GraphedPlan(const GraphedPlan& planned, LoadedPlan plan)
      : driver_(planned.driver_),
        device_(planned.device_),
        plan_(std::move(plan)),
        operands_(planned.operands_),
        recorded_(true) {}

  const LoadedPlan& loaded() const { return plan_; }

  int64_t workspace_bytes() const override { return plan_.workspace_bytes(); }

  Status execute(std::span<void* const> buffers, void* workspace, void* stream) const override {
    const auto on = static_cast<CuStream>(stream);
    HEDDLE_TRY(give_context(driver_, device_));
    if (const std::unique_lock lock(mutex_, std::try_to_lock); lock.owns_lock() && serves(on)) {
      if (const std::optional<Status> done = graph_->try_execute(plan_, buffers, workspace, on))
        return *done;
    }
    StreamQueue queue(driver_, on);
    return with_devices(plan_.execute(buffers, workspace, queue));
  }

  std::string description() const override { return plan_.description(); }
  const problem::ChosenPath* attention_path() const override { return plan_.attention_path(); }

 private:
  /// Without a graph, for whatever reason, the plan is launches.
  void record() const {
    if (recorded_ || !LaunchGraph::possible(driver_, device_)) return;
    recorded_ = true;
    auto graph = LaunchGraph::record(driver_, plan_, operands_);
    if (graph.is_ok()) graph_ = std::move(*graph);
  }

  bool serves(CuStream stream) const {
    if (graph_ && graph_->context() == LaunchGraph::Context::outlived) {
      graph_.reset();
      recorded_ = false;
    }
    record();
    return graph_ && !is_captured(stream) && graph_->context() == LaunchGraph::Context::current;
  }

  /// Kernels have what they need, shared memory above all, on the plan's device alone.
  Status with_devices(Status executed) const {
    CuDevice device = 0;
    if (executed.code() != Code::cuda_api_failed ||
        driver_.context_get_device(&device) != kCudaSuccess || device == device_)
      return executed;
    return error(executed.code(),
                 "{}; the plan is of device {}, the calling thread's context of device {}",
                 executed.message(), device_, device);
  }

  bool is_captured(CuStream stream) const {
    int status = 0;
    return driver_.stream_is_capturing(stream, &status) != kCudaSuccess || status != 0;
  }

  const Driver& driver_;
  const CuDevice device_;
  const LoadedPlan plan_;
  const std::vector<problem::OperandType> operands_;

  mutable std::mutex mutex_;  ///< of all that follows
  /// Only a plan made in a thread without its context is not; one of launches is taken for it.
  mutable bool recorded_ = false;
  mutable std::unique_ptr<LaunchGraph> graph_;
};

}  // namespace

std::shared_ptr<const Plan> graphed_plan(const Driver& driver, CuDevice device, LoadedPlan plan,
                                         std::vector<problem::OperandType> operands) {
  return std::make_shared<const GraphedPlan>(driver, device, std::move(plan), std::move(operands));
}

Result<std::shared_ptr<const Plan>> resized_plan(const Plan& plan, Lowering late) {
  const auto& planned = static_cast<const GraphedPlan&>(plan);
  HEDDLE_ASSIGN(LoadedPlan resized, planned.loaded().resized(std::move(late)));
  return std::make_shared<const GraphedPlan>(planned, std::move(resized));
}

}  // namespace heddle::engine::cuda
