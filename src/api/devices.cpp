#include "api/devices.h"

#include <array>

#include "engine/cpu/engine.h"
#include "engine/cuda/engine.h"

namespace heddle::api {

std::span<const engine::Engine* const> engines(Device device) {
  static const std::array<const engine::Engine*, 1> cpu{&engine::cpu_engine()};
  static const std::array<const engine::Engine*, 1> cuda{&engine::cuda::cuda_engine()};
  return device == Device::cpu ? std::span(cpu) : std::span(cuda);
}

}  // namespace heddle::api
