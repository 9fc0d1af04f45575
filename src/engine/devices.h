// Where a graph's buffers are, and the engines that serve it there.
#pragma once

#include <memory>
#include <span>
#include <string>

#include "engine/engine.h"

namespace heddle::engine {

enum class Device : uint8_t { cpu, cuda };

/// Where a program runs that names no device: where HEDDLE_DEVICE says, else on the GPU if there is
/// one, else on the CPU.
Result<Device> default_device();

/// The device's engines, the preferred first.
std::span<const Engine* const> engines(Device device);

/// What the CUDA engine would do on devices of the architecture ("sm_90a"), without one: its plans
/// run nothing, and it has to outlive them.
Result<std::unique_ptr<const Engine>> architecture_engine(const std::string& architecture);

/// Which of the machine's devices of this kind plans made by the calling thread are for; 0 where
/// there is one, or none.
int ordinal(Device device);

}  // namespace heddle::engine
