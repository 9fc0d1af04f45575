// Random score modifiers: the shapes users write (soft cap, relative position bias, masks, gates).
#pragma once

#include "support/program.h"

namespace heddle::testing {

/// A modifier of scores [B,Hq,Sq,Skv]; tensors it captures are added to the program and filled.
graph::ScoreModifier random_score_mod(Random& random, Program& program, int64_t batch,
                                      int64_t heads, int64_t q_length, int64_t kv_length);

/// A made-up derivative that reads the gradient and what `forward` makes on its way.
graph::ScoreModifier random_score_mod_bprop(Random& random, Program& program,
                                            const graph::ScoreModifier& forward);

}  // namespace heddle::testing
