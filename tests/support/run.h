// Runs a program the way a caller would: fused, planned by one engine, on the program's memory.
#pragma once

#include "engine/engine.h"
#include "fusion/schedule.h"
#include "support/program.h"

namespace heddle::testing {

/// Validates and fuses the program's graph, plans every step with `engine` and executes the steps
/// in order. Intermediates and workspace start as poison; bytes past the workspace must stay it.
Status run(Program& program, const engine::Engine& engine);

}  // namespace heddle::testing
