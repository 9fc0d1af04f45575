// What plans ask of the machine.
#pragma once

#include <cstdint>

namespace heddle::engine::cpu {

/// Bytes of one core's L2 cache; 512 KiB if the system does not say.
int64_t l2_bytes();

}  // namespace heddle::engine::cpu
