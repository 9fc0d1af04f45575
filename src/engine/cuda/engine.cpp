#include "engine/cuda/engine.h"

#include "engine/cuda/compiled_kernel.h"
#include "engine/cuda/graphed_plan.h"
#include "engine/cuda/loaded_plan.h"
#include "engine/cuda/lowering.h"
#include "engine/cuda/run_concurrently.h"
#include "problem/operands.h"

namespace heddle::engine::cuda {
namespace {

class CudaEngine final : public Engine {
 public:
  std::string_view name() const override { return "cuda"; }

  Result<std::shared_ptr<const Plan>> plan(const Problem& problem) const override {
    HEDDLE_ASSIGN(const Device device, find_device());
    HEDDLE_ASSIGN(const Target target, find_target(device));
    HEDDLE_ASSIGN(Lowering lowering, lower(problem, target));
    HEDDLE_ASSIGN(LoadedPlan plan, LoadedPlan::load(*driver(), device, std::move(lowering)));
    return graphed_plan(*driver(), device.handle, std::move(plan), problem::types_of(problem));
  }

  Result<std::shared_ptr<const Plan>> resized(const Plan& plan,
                                              const Problem& problem) const override {
    HEDDLE_ASSIGN(const Device device, find_device());
    HEDDLE_ASSIGN(const Target target, find_target(device));
    HEDDLE_ASSIGN(Lowering late, lower(problem, target));
    return resized_plan(plan, std::move(late));
  }

  Status prepare(std::span<const Problem* const> problems) const override {
    HEDDLE_ASSIGN(const Device device, find_device());
    HEDDLE_ASSIGN(const Target target, find_target(device));
    std::vector<KernelUnit> all;
    for (const Problem* problem : problems) {
      HEDDLE_ASSIGN(const Lowering lowering, lower(*problem, target));
      all.insert(all.end(), lowering.units.begin(), lowering.units.end());
    }
    return run_concurrently(all.size(), [&](size_t n) {
      return compiled_kernel(all[n], target.architecture).status();
    });
  }

 private:
  /// The device, with the paths that the environment leaves.
  static Result<Target> find_target(const Device& device) {
    Target target = target_of(device);
    HEDDLE_ASSIGN(target.paths, problem::AllowedPaths::of_environment());
    return target;
  }

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
};

}  // namespace

const Engine& cuda_engine() {
  static const CudaEngine engine;
  return engine;
}

Status find_any_device() {
  if (!driver().is_ok()) return driver().status();
  int count = 0;
  HEDDLE_TRY(driver()->check(driver()->device_get_count(&count), "cuDeviceGetCount"));
  if (count == 0) return error(Code::invalid_cuda_device, "The NVIDIA driver has no device.");
  return {};
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
