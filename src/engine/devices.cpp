#include "engine/devices.h"

#include <array>

#include "engine/cpu/engine.h"
#include "engine/cuda/engine.h"
#include "engine/cuda/target_engine.h"

namespace heddle::engine {

std::span<const Engine* const> engines(Device device) {
  static const std::array<const Engine*, 1> cpu{&cpu_engine()};
  static const std::array<const Engine*, 1> cuda{&cuda::cuda_engine()};
  return device == Device::cpu ? std::span(cpu) : std::span(cuda);
}

Result<std::unique_ptr<const Engine>> architecture_engine(const std::string& architecture) {
  HEDDLE_ASSIGN(cuda::Target target, cuda::target_named(architecture));
  return cuda::target_engine(std::move(target));
}

int ordinal(Device device) { return device == Device::cpu ? 0 : cuda::current_ordinal(); }

}  // namespace heddle::engine
