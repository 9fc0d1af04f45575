// What plans ask of the machine.
#pragma once

#include <cstdint>

namespace heddle::engine::cpu {

/// What is done side by side at most: every workspace has room for so many, on machines that have
/// fewer too, for a program may run elsewhere than where its workspace was measured. Pages that
/// nobody writes to cost no memory.
inline constexpr int kMostWorkers = 128;

/// Bytes of one core's L2 cache; 512 KiB if the system does not say.
int64_t l2_bytes();

}  // namespace heddle::engine::cpu
