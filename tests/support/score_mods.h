// Random score modifiers: the shapes users write (soft cap, relative position bias, masks, gates).
#pragma once

#include "support/program.h"

namespace heddle::testing {

/// A modifier of scores with these dims [B,Hq,Sq,Skv]; tensors it captures are added to the program
/// and filled. With chance `boolean_mask` its last step hides what a boolean operand says, whole
/// runs of keys and whole rows; with chance `hidden_rows` it is at -1e30 in every third row; with
/// chance `functions` its first step is a root, a logarithm, a power, a function of an angle, ...
graph::ScoreModifier random_score_mod(Random& random, Program& program, const Dims& scores,
                                      double boolean_mask, double hidden_rows, double functions);

/// A made-up derivative that reads the gradient and what `forward` makes on its way.
graph::ScoreModifier random_score_mod_bprop(Random& random, Program& program,
                                            const graph::ScoreModifier& forward);

}  // namespace heddle::testing
