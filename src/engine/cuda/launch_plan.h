// A plan that is a list of launches, each with its own parameter block.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "engine/cuda/f32_plan.h"
#include "engine/cuda/kernel.h"
#include "engine/cuda/launch_operands.h"
#include "engine/cuda/passed_arguments.h"

namespace heddle::engine::cuda {

template <class Parameters>
struct LaunchStep {
  std::shared_ptr<const Kernel> kernel;
  Launch launch;
  Parameters parameters;
  std::vector<Entry> entries;
  PassedBytes passed;
};

template <class Parameters>
class LaunchPlan final : public QueuedPlan {
 public:
  /// With `after_pairs` it is the second of plan_f32's.
  LaunchPlan(std::vector<LaunchStep<Parameters>> steps, std::vector<AlignedOperand> aligned,
             int64_t workspace_bytes, std::string description, bool after_pairs)
      : steps_(std::move(steps)),
        aligned_(std::move(aligned)),
        workspace_bytes_(workspace_bytes),
        description_(std::move(description)),
        after_pairs_(after_pairs) {}

  int64_t workspace_bytes() const override {
    return workspace_bytes_ + (after_pairs_ ? kUnfitBytes : 0);
  }

  Status execute(std::span<void* const> buffers, void* workspace, Queue& queue) const override {
    HEDDLE_TRY(check_addresses(aligned_, buffers));
    char* const scratch = static_cast<char*>(workspace) + (after_pairs_ ? kUnfitBytes : 0);
    for (const LaunchStep<Parameters>& step : steps_) {
      Parameters parameters = step.parameters;
      bind(step.entries, buffers, &parameters);
      if constexpr (requires { parameters.delta; })
        parameters.delta = reinterpret_cast<attention::RowDelta*>(scratch);
      attention::ForwardParameters& forward = forward_of(parameters);
      forward.unfit = after_pairs_ ? static_cast<const unsigned*>(workspace) : nullptr;
      Passed passed(parameters, step.passed);
      void* arguments[] = {passed.address()};
      HEDDLE_TRY(
          step.kernel->launch(step.launch, queue, arguments, passed.place_of(forward.first_batch)));
    }
    return {};
  }

  std::string description() const override { return description_; }

 private:
  static attention::ForwardParameters& forward_of(Parameters& parameters) {
    if constexpr (requires { parameters.forward; })
      return parameters.forward;
    else
      return parameters;
  }

  std::vector<LaunchStep<Parameters>> steps_;
  std::vector<AlignedOperand> aligned_;
  int64_t workspace_bytes_;
  std::string description_;
  bool after_pairs_;
};

}  // namespace heddle::engine::cuda
