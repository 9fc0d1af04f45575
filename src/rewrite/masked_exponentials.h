// Exponentials that numbers, each 0 or 1, multiply before they are summed, or that are 0 where a
// predicate fails: exp(s) * m is exp(s) of scores that are -inf where m is 0.
#pragma once

#include "core/status.h"
#include "hlo/module.h"

namespace heddle::rewrite {

/// Of exponentials that the program, its gradient too, uses so alone.
Status write_masks_into_exponentials(hlo::Computation& computation);

}  // namespace heddle::rewrite
