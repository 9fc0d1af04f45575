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
/// behind it, queries and keys among it, is then seen to be what the forward computes. XLA sees it
/// too and may keep that instead; policies that keep scores compute little again.
void take_barriers_of_scores_away(const hlo::Module& module);

}  // namespace heddle::rewrite
