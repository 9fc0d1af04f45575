// A plan that is a list of launches, each with its own parameter block.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "engine/cuda/kernel.h"
#include "engine/cuda/launch_operands.h"
#include "engine/engine.h"

namespace heddle::engine::cuda {

template <class Parameters>
struct LaunchStep {
  std::shared_ptr<const Kernel> kernel;
  Launch launch;
  Parameters parameters;
  std::vector<Entry> entries;
};

template <class Parameters>
class LaunchPlan final : public Plan {
 public:
  LaunchPlan(std::vector<LaunchStep<Parameters>> steps, std::vector<AlignedOperand> aligned,
             int64_t workspace_bytes, std::string description)
      : steps_(std::move(steps)),
        aligned_(std::move(aligned)),
        workspace_bytes_(workspace_bytes),
        description_(std::move(description)) {}

  int64_t workspace_bytes() const override { return workspace_bytes_; }

  Status execute(std::span<void* const> buffers, void* workspace, void* stream) const override {
    HEDDLE_TRY(check_addresses(aligned_, buffers));
    for (const LaunchStep<Parameters>& step : steps_) {
      Parameters parameters = step.parameters;
      bind(step.entries, buffers, &parameters);
      if constexpr (requires { parameters.delta; })
        parameters.delta = static_cast<float*>(workspace);
      void* arguments[] = {&parameters};
      HEDDLE_TRY(step.kernel->launch(step.launch, static_cast<CuStream>(stream), arguments));
    }
    return {};
  }

  std::string description() const override { return description_; }

 private:
  std::vector<LaunchStep<Parameters>> steps_;
  std::vector<AlignedOperand> aligned_;
  int64_t workspace_bytes_;
  std::string description_;
};

}  // namespace heddle::engine::cuda
