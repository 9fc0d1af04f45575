#include "engine/cuda/lowering.h"

#include <algorithm>

namespace heddle::engine::cuda {
namespace {

size_t add_unit(KernelUnit unit, std::vector<KernelUnit>& units) {
  const auto at = std::find(units.begin(), units.end(), unit);
  const auto number = static_cast<size_t>(at - units.begin());
  if (at == units.end()) units.push_back(std::move(unit));
  return number;
}

}  // namespace

size_t Lowering::add_kernel(KernelUnit unit, int threads, int64_t shared_bytes, std::string name) {
  if (name.empty()) name = unit.name;
  kernels.push_back({add_unit(std::move(unit), units), std::move(name), threads, shared_bytes});
  return kernels.size() - 1;
}

size_t Lowering::add_kernels(const Lowering& part) {
  const size_t first = kernels.size();
  std::vector<size_t> numbers;
  for (const KernelUnit& unit : part.units) numbers.push_back(add_unit(unit, units));
  for (LoweredKernel kernel : part.kernels) {
    kernel.unit = numbers[kernel.unit];
    kernels.push_back(std::move(kernel));
  }
  return first;
}

Result<std::vector<size_t>> kernels_of_plan(const Lowering& planned, const Lowering& late) {
  std::vector<size_t> numbers;
  for (const LoweredKernel& kernel : late.kernels) {
    const KernelUnit& unit = late.units[kernel.unit];
    const auto is_same = [&](const LoweredKernel& other) {
      return other.name == kernel.name && other.shared_bytes >= kernel.shared_bytes &&
             planned.units[other.unit].source == unit.source;
    };
    const auto at = std::find_if(planned.kernels.begin(), planned.kernels.end(), is_same);
    if (at == planned.kernels.end()) {
      return error(Code::graph_not_supported,
                   "cuda: at these sizes the plan would be {}, with a kernel {} that it was not "
                   "planned with: {}; make a plan for them",
                   late.description, kernel.name, planned.description);
    }
    numbers.push_back(static_cast<size_t>(at - planned.kernels.begin()));
  }
  return numbers;
}

}  // namespace heddle::engine::cuda
