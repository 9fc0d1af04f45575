#include "engine/cuda/loaded_plan.h"

#include <atomic>
#include <chrono>

#include "engine/cuda/compiled_kernel.h"
#include "sm90/forward_arguments.h"

namespace heddle::engine::cuda {
namespace {

/// Of each plan another, and of each process.
uint64_t new_claim() {
  static std::atomic<uint64_t> plans{
      static_cast<uint64_t>(std::chrono::system_clock::now().time_since_epoch().count())};
  const uint64_t mixed = plans.fetch_add(1, std::memory_order_relaxed) * 0x9E3779B97F4A7C15U;
  // Never 0, which a launch leaves behind.
  return (mixed >> sm90::kTicketBits | 1) << sm90::kTicketBits;
}

}  // namespace

LoadedPlan::LoadedPlan(const Driver& driver, Lowering lowering)
    : driver_(&driver), lowering_(std::move(lowering)), claim_(new_claim()) {}

Result<LoadedPlan> LoadedPlan::load(const Driver& driver, const Device& device, Lowering lowering) {
  LoadedPlan plan(driver, std::move(lowering));
  const std::string architecture = target_of(device).architecture;
  for (const LoweredKernel& kernel : plan.lowering_.kernels) {
    const KernelUnit& unit = plan.lowering_.units[kernel.unit];
    HEDDLE_ASSIGN(const std::shared_ptr<const Cubin> cubin, compiled_kernel(unit, architecture));
    HEDDLE_ASSIGN(std::shared_ptr<const Kernel> loaded,
                  Kernel::load(driver, device, cubin, kernel.name, kernel.shared_bytes));
    plan.kernels_.push_back(std::move(loaded));
  }
  return plan;
}

Result<LoadedPlan> LoadedPlan::resized(Lowering late) const {
  HEDDLE_ASSIGN(const std::vector<size_t> numbers, kernels_of_plan(lowering_, late));
  LoadedPlan plan(*driver_, std::move(late));
  for (size_t number : numbers) plan.kernels_.push_back(kernels_[number]);
  return plan;
}

Status LoadedPlan::execute(std::span<void* const> buffers, void* workspace, Queue& queue) const {
  return lowering_.launches->execute({.buffers = buffers,
                                      .workspace = static_cast<char*>(workspace),
                                      .kernels = kernels_,
                                      .claim = claim_,
                                      .driver = *driver_,
                                      .queue = queue});
}

}  // namespace heddle::engine::cuda
