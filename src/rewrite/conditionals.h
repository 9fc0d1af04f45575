// Conditionals written in one way.
#pragma once

#include "core/status.h"
#include "hlo/module.h"
#include "rewrite/separable.h"

namespace heddle::rewrite {

/// What a branch is given and what it gives, an array or whatever makes a tuple, becomes a tuple of
/// its elements: these can then be followed from one conditional to another, added and removed.
/// Branches of several callers stay.
Status take_conditionals_apart(hlo::Computation& computation, const Callers& callers);

}  // namespace heddle::rewrite
