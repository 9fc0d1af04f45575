#include "engine/devices.h"

#include <array>
#include <string_view>

#include "core/environment.h"
#include "engine/cpu/engine.h"
#include "engine/cuda/engine.h"
#include "engine/cuda/target_engine.h"

namespace heddle::engine {

Result<Device> default_device() {
  const char* const value = environment::value_of("HEDDLE_DEVICE");
  const std::string_view named = value ? value : "";
  if (named == "cpu") return Device::cpu;
  const Status found = cuda::find_any_device();
  if (named.empty()) return found.is_ok() ? Device::cuda : Device::cpu;
  if (named != "cuda")
    return error(Code::invalid_value, "HEDDLE_DEVICE is '{}', expected cpu or cuda", named);
  if (!found.is_ok()) return found;
  return Device::cuda;
}

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
