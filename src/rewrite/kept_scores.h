// Checkpoints that keep scores. A policy such as dots_saveable hands what it keeps to the backward
// behind a barrier; where scores or weights are among it, what the checkpoint saves is what a call
// does without.
#pragma once

#include "hlo/module.h"

namespace heddle::rewrite {

/// A rounding to the precision that a value's own type has, as checkpoints write around what they
/// keep, is the value.
void take_roundings_to_own_type_away(hlo::Computation& computation);

/// Of a barrier that holds scores of a softmax, or weights, nothing stays: what is computed again
/// behind it from one of its values is then seen to be what the forward computes.
void take_barriers_of_scores_away(const hlo::Module& module);

}  // namespace heddle::rewrite
