#include "engine/cuda/engine.h"

#include "engine/cuda/attention_backward_sm80.h"
#include "engine/cuda/attention_backward_sm90.h"
#include "engine/cuda/attention_check.h"
#include "engine/cuda/attention_forward_sm80.h"
#include "engine/cuda/attention_forward_sm90.h"
#include "engine/cuda/f32_plan.h"
#include "engine/cuda/graphed_plan.h"
#include "engine/cuda/host_values.h"
#include "engine/cuda/kernel_cache.h"
#include "engine/cuda/kernel_units.h"
#include "engine/cuda/problem_operands.h"
#include "engine/cuda/problem_stages.h"
#include "engine/cuda/rms_norm.h"
#include "engine/cuda/rms_norm_backward.h"
#include "engine/cuda/rope.h"
#include "engine/cuda/run_concurrently.h"

namespace heddle::engine::cuda {
namespace {

class CudaEngine final : public Engine {
 public:
  std::string_view name() const override { return "cuda"; }

  Result<std::shared_ptr<const Plan>> plan(const Problem& problem) const override {
    HEDDLE_ASSIGN(const Device device, find_device());
    HEDDLE_ASSIGN(std::shared_ptr<const QueuedPlan> plan, plan_on(device, problem));
    return graphed_plan(*driver(), device.handle, std::move(plan), operands_of(problem));
  }

  Status prepare(std::span<const Problem* const> problems) const override {
    HEDDLE_ASSIGN(const Device device, find_device());
    const std::string architecture = architecture_of(device);
    std::vector<KernelUnit> all;
    for (const Problem* problem : problems) {
      const Result<std::vector<KernelUnit>> units = kernel_units(*problem, architecture);
      if (!units.is_ok()) return units.status();
      all.insert(all.end(), units->begin(), units->end());
    }
    return run_concurrently(all.size(), [&](size_t n) {
      return compiled_kernel(all[n].source, all[n].name, architecture).status();
    });
  }

 private:
  /// The calling thread's, if it runs kernels.
  static Result<Device> find_device() {
    if (!driver().is_ok()) return driver().status();
    HEDDLE_ASSIGN(Device device, current_device(*driver()));
    if (!is_supported(device)) {
      return error(Code::graph_not_supported,
                   "cuda: {} has compute capability {}.{}; kernels need 8.0 or newer", device.name,
                   device.compute_capability / 10, device.compute_capability % 10);
    }
    return device;
  }

  /// By Hopper's kernels, or by the general ones what those do not take.
  template <class Attention, class Hopper, class General>
  static Result<std::shared_ptr<const QueuedPlan>> plan_attention(
      const Device& device, const Attention& problem, const problem::AttentionStructure& structure,
      Hopper plan_hopper, General plan_general) {
    if (device.compute_capability == 90) {
      auto hopper = plan_hopper(*driver(), device, problem);
      if (hopper.is_ok() && is_f32(structure)) {
        HEDDLE_ASSIGN(auto general, plan_general(*driver(), device, problem, true));
        return plan_f32(*hopper, std::move(general));
      }
      if (hopper.is_ok() || hopper.status().code() != Code::graph_not_supported) return hopper;
    }
    return plan_general(*driver(), device, problem, false);
  }

  static Result<std::shared_ptr<const QueuedPlan>> plan_on(const Device& device,
                                                           const Problem& problem) {
    if (std::vector<HostValue> values = host_values(problem); !values.empty()) {
      HEDDLE_ASSIGN(auto plan, plan_on(device, with_values_on_device(problem, values)));
      return plan_host_values(*driver(), device, std::move(plan), std::move(values));
    }
    if (const std::optional<Stages> stages = stages_of(problem, architecture_of(device))) {
      return plan_stages(*stages, [&device](const Problem& step) { return plan_on(device, step); });
    }
    if (const auto* forward = std::get_if<problem::AttentionProblem>(&problem))
      return plan_attention(device, *forward, forward->structure, plan_forward_sm90,
                            plan_forward_sm80);
    if (const auto* backward = std::get_if<problem::AttentionBackwardProblem>(&problem))
      return plan_attention(device, *backward, backward->structure.forward, plan_backward_sm90,
                            plan_backward_sm80);
    if (const auto* norm = std::get_if<problem::NormProblem>(&problem))
      return plan_rms_norm(*driver(), device, *norm);
    if (const auto* norm = std::get_if<problem::NormBackwardProblem>(&problem))
      return plan_rms_norm_backward(*driver(), device, *norm);
    return plan_rope(*driver(), device, std::get<problem::RopeProblem>(problem));
  }
};

}  // namespace

const Engine& cuda_engine() {
  static const CudaEngine engine;
  return engine;
}

int current_ordinal() {
  CuContext context = nullptr;
  CuDevice device = 0;
  if (!driver().is_ok() || driver()->context_get_current(&context) != kCudaSuccess || !context ||
      driver()->context_get_device(&device) != kCudaSuccess) {
    return 0;
  }
  return device;
}

}  // namespace heddle::engine::cuda
