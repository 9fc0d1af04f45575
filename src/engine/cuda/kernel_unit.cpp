#include "engine/cuda/kernel_unit.h"

#include "engine/cuda/device.h"
#include "engine/cuda/kernel_cache.h"

namespace heddle::engine::cuda {

Result<std::shared_ptr<const Kernel>> load_kernel(const Driver& driver, const Device& device,
                                                  const KernelUnit& unit, int64_t shared_bytes) {
  HEDDLE_ASSIGN(const std::shared_ptr<const Cubin> cubin,
                compiled_kernel(unit.source, unit.name, architecture_of(device)));
  return Kernel::load(driver, device, cubin, unit.name, shared_bytes);
}

}  // namespace heddle::engine::cuda
