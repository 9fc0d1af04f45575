#include "engine/cuda/target.h"

#include <algorithm>
#include <cctype>

namespace heddle::engine::cuda {
namespace {

constexpr const char* kHopperArchitecture = "sm_90a";
constexpr int kOldestCapability = 80, kHopper = 90;

/// Of the largest device of a capability: A100, GA102, AD102, H100 and H200, B200.
int processors_of(int compute_capability) {
  switch (compute_capability) {
    case 80:
      return 108;
    case 86:
    case 87:
      return 84;
    case 89:
      return 144;
    case kHopper:
      return 132;
    default:
      return 148;
  }
}

}  // namespace

int Target::shared_limit() const {
  switch (compute_capability) {
    case 80:
    case 87:
      return 163 * 1024;
    case kHopper:
    case 100:
    case 103:
    case 110:
      return 227 * 1024;
    default:
      return 99 * 1024;
  }
}

Target target_of(const Device& device) {
  // wgmma, setmaxnreg and their kind exist for the exact architecture only.
  return {.architecture = device.compute_capability == kHopper
                              ? kHopperArchitecture
                              : fmt::format("sm_{}", device.compute_capability),
          .compute_capability = device.compute_capability,
          .processors = device.multiprocessors};
}

Result<Target> target_named(const std::string& architecture) {
  const auto refused = [&](std::string_view why) {
    return error(Code::invalid_value, "The architecture is '{}', {}", architecture, why);
  };
  const bool is_hopper = architecture == kHopperArchitecture;
  const bool is_number = architecture.starts_with("sm_") && architecture.size() > 3 &&
                         architecture.size() < 8 &&
                         std::all_of(architecture.begin() + 3, architecture.end(),
                                     [](unsigned char digit) { return std::isdigit(digit) != 0; });
  if (!is_hopper && !is_number)
    return refused("expected sm_80, sm_86, sm_90a or another such name.");
  const int capability = is_hopper ? kHopper : std::stoi(architecture.substr(3));
  if (!is_hopper && capability == kHopper)
    return refused("but devices of compute capability 9.0 run sm_90a.");
  if (capability < kOldestCapability) return refused("but kernels need sm_80 or later.");
  return Target{architecture, capability, processors_of(capability)};
}

}  // namespace heddle::engine::cuda
