#include "engine/cuda/target_engine.h"

#include "engine/cuda/kernel_archive.h"
#include "engine/cuda/lowering.h"

namespace heddle::engine::cuda {
namespace {

class LoweredPlan final : public Plan {
 public:
  LoweredPlan(Lowering lowering, const std::string& architecture)
      : lowering_(std::move(lowering)), description_(lowering_.description) {
    const Result<KernelArchive>& archive = installed_archive();
    for (const LoweredKernel& kernel : lowering_.kernels) {
      const std::string& source = lowering_.units[kernel.unit].source;
      const bool is_compiled = archive && archive->find(source, architecture).is_ok();
      description_ += fmt::format("\n  kernel {}: {} threads, {} bytes of dynamic shared memory{}",
                                  kernel.name, kernel.threads, kernel.shared_bytes,
                                  is_compiled ? ", compiled beforehand" : "");
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
    return std::make_shared<const LoweredPlan>(std::move(lowering), target_.architecture);
  }
  Result<std::shared_ptr<const Plan>> resized(const Plan& plan,
                                              const Problem& problem) const override {
    HEDDLE_ASSIGN(Lowering late, lower(problem, target_));
    HEDDLE_TRY(kernels_of_plan(static_cast<const LoweredPlan&>(plan).lowering(), late).status());
    return std::make_shared<const LoweredPlan>(std::move(late), target_.architecture);
  }

 private:
  const Target target_;
};

}  // namespace

std::unique_ptr<const Engine> target_engine(Target target) {
  return std::make_unique<const TargetEngine>(std::move(target));
}

}  // namespace heddle::engine::cuda
