// Global memory: each allocation has pages of its own, after which there is nothing.
#pragma once

#include <cstdint>

namespace heddle::emulator {

/// 0 where there is no more.
uint64_t allocate(uint64_t bytes);
/// False where nothing was allocated there.
bool release(uint64_t address);

}  // namespace heddle::emulator
