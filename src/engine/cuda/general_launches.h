// The launches of general kernels, each with its own parameter block.
#pragma once

#include <vector>

#include "engine/cuda/f16_pairs.h"
#include "engine/cuda/kernel_arguments.h"
#include "engine/cuda/launch_operands.h"

namespace heddle::engine::cuda {

template <class Parameters>
struct GeneralLaunch {
  size_t kernel;
  Launch launch;
  Parameters parameters;
  std::vector<Entry> entries;
  attention::ArgumentLayout argument_layout;
};

template <class Parameters>
class GeneralLaunches final : public Launches {
 public:
  /// With `after_pairs` Hopper's kernels run before them, in the same workspace.
  GeneralLaunches(std::vector<GeneralLaunch<Parameters>> steps,
                  std::vector<problem::NamedOperand> aligned, bool after_pairs)
      : steps_(std::move(steps)), aligned_(std::move(aligned)), after_pairs_(after_pairs) {}

  Status execute(const Execution& at) const override {
    HEDDLE_TRY(check_addresses(aligned_, at.buffers));
    for (const GeneralLaunch<Parameters>& step : steps_) {
      Parameters parameters = step.parameters;
      bind_entries(step.entries, at.buffers, &parameters);
      if constexpr (requires { parameters.delta; })
        parameters.delta = reinterpret_cast<attention::RowDelta*>(
            at.workspace + (after_pairs_ ? kFallbackBytes : 0));
      attention::ForwardParameters& forward = forward_of(parameters);
      forward.fallback = after_pairs_ ? reinterpret_cast<unsigned*>(at.workspace) : nullptr;
      KernelArguments arguments(parameters, step.argument_layout);
      HEDDLE_TRY(at.launch(step.kernel, step.launch, arguments.address(), arguments.first_batch()));
    }
    return {};
  }

 private:
  static attention::ForwardParameters& forward_of(Parameters& parameters) {
    if constexpr (requires { parameters.forward; })
      return parameters.forward;
    else
      return parameters;
  }

  std::vector<GeneralLaunch<Parameters>> steps_;
  std::vector<problem::NamedOperand> aligned_;
  bool after_pairs_;
};

}  // namespace heddle::engine::cuda
