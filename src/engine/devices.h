// Where a graph's buffers are, and the engines that serve it there.
#pragma once

#include <span>

#include "engine/engine.h"

namespace heddle::engine {

enum class Device : uint8_t { cpu, cuda };

/// The device's engines, the preferred first.
std::span<const Engine* const> engines(Device device);

/// Which of the machine's devices of this kind plans made by the calling thread are for; 0 where
/// there is one, or none.
int ordinal(Device device);

}  // namespace heddle::engine
