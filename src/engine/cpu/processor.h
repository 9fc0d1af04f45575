// What the processor has and the operating system lets a program use.
#pragma once

#include "engine/cpu/isa.h"

namespace heddle::engine::cpu {

/// Whether the machine runs the level's instructions. Linux gives tiles to a process that asks for
/// them: the first question about amx does.
bool machine_has(Isa isa);

}  // namespace heddle::engine::cpu
