// The CPU engine: flash attention forward and backward on every core, in the best instruction set
// the machine has (isa.h).
#pragma once

#include "engine/engine.h"

namespace heddle::engine {

const Engine& cpu_engine();

}  // namespace heddle::engine
