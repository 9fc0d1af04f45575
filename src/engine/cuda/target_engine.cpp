#include "engine/cuda/target_engine.h"

#include "engine/cuda/lowering.h"

namespace heddle::engine::cuda {
namespace {

class LoweredPlan final : public Plan {
 public:
  explicit LoweredPlan(const Lowering& lowering)
      : workspace_bytes_(lowering.workspace_bytes), description_(lowering.description) {
    for (const LoweredKernel& kernel : lowering.kernels) {
      description_ += fmt::format("\n  kernel {}: {} threads, {} bytes of dynamic shared memory",
                                  kernel.name, kernel.threads, kernel.shared_bytes);
    }
    for (const PassedOver& way : lowering.passed_over)
      description_ += fmt::format("\n  not {}: {}", way.name, way.reason);
  }

  int64_t workspace_bytes() const override { return workspace_bytes_; }
  std::string description() const override { return description_; }
  Status execute(std::span<void* const>, void*, void*) const override {
    return error(Code::invalid_cuda_device,
                 "cuda: the plan is of an architecture, not of a device, and runs nothing");
  }

 private:
  int64_t workspace_bytes_;
  std::string description_;
};

class TargetEngine final : public Engine {
 public:
  explicit TargetEngine(Target target) : target_(std::move(target)) {}

  std::string_view name() const override { return "cuda"; }
  Result<std::shared_ptr<const Plan>> plan(const Problem& problem) const override {
    HEDDLE_ASSIGN(const Lowering lowering, lower(problem, target_));
    return std::make_shared<const LoweredPlan>(lowering);
  }

 private:
  const Target target_;
};

}  // namespace

std::unique_ptr<const Engine> target_engine(Target target) {
  return std::make_unique<const TargetEngine>(std::move(target));
}

}  // namespace heddle::engine::cuda
