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

}  // namespace heddle::engine::cuda
