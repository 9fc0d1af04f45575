#include "engine/cuda/target_engine.h"

#include "engine/cuda/lowering.h"

namespace heddle::engine::cuda {
namespace {

class LoweredPlan final : public Plan {
 public:
  explicit LoweredPlan(Lowering lowering)
      : lowering_(std::move(lowering)), description_(lowering_.description) {
    for (const LoweredKernel& kernel : lowering_.kernels) {
      description_ += fmt::format("\n  kernel {}: {} threads, {} bytes of dynamic shared memory",
                                  kernel.name, kernel.threads, kernel.shared_bytes);
    }
    for (const PassedOver& way : lowering_.passed_over)
      description_ += fmt::format("\n  not {}: {}", way.name, way.reason);
  }

  int64_t workspace_bytes() const override { return lowering_.workspace_bytes; }
  std::string description() const override { return description_; }
  const problem::ChosenPath* attention_path() const override {
    return lowering_.attention_path ? &*lowering_.attention_path : nullptr;
  }
  const Lowering& lowering() const { return lowering_; }
  Status execute(std::span<void* const>, void*, void*) const override {
    return error(Code::invalid_cuda_device,
                 "cuda: the plan is of an architecture, not of a device, and runs nothing");
  }

 private:
  Lowering lowering_;
  std::string description_;
};

class TargetEngine final : public Engine {
 public:
  explicit TargetEngine(Target target) : target_(std::move(target)) {}

  std::string_view name() const override { return "cuda"; }
  Result<std::shared_ptr<const Plan>> plan(const Problem& problem) const override {
    HEDDLE_ASSIGN(Lowering lowering, lower(problem, target_));
    return std::make_shared<const LoweredPlan>(std::move(lowering));
  }
  Result<std::shared_ptr<const Plan>> resized(const Plan& plan,
                                              const Problem& problem) const override {
    HEDDLE_ASSIGN(Lowering late, lower(problem, target_));
    HEDDLE_TRY(kernels_of_plan(static_cast<const LoweredPlan&>(plan).lowering(), late).status());
    return std::make_shared<const LoweredPlan>(std::move(late));
  }

 private:
  const Target target_;
};

}  // namespace

std::unique_ptr<const Engine> target_engine(Target target) {
  return std::make_unique<const TargetEngine>(std::move(target));
}

}  // namespace heddle::engine::cuda
