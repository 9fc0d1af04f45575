// What the processor has and the operating system lets a program use.
#pragma once

#include "engine/cpu/isa.h"

namespace heddle::engine::cpu {

/// Whether this build has the level's kernels and the machine runs them. Linux gives tiles to a
/// process that asks for them: the first question about amx does.
bool machine_has(Isa isa);

}  // namespace heddle::engine::cpu
