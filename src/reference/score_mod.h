// Score modifiers cell by cell: pointwise ops from a scaled dot to a score, and their derivative by
// reverse accumulation over the same ops.
#pragma once

#include "reference/values.h"

namespace heddle::reference {

/// A score's place: batch, query head, query row, key column.
struct Cell {
  int64_t b, h, i, j;
};

/// The modifier's score_out when its score_in is `score`.
double modified_score(const graph::ScoreModifier& modifier, double score, const Cell& cell,
                      const Values& values);

/// `gradient` * d score_out / d `by` at score_in = `score`, `by` being score_in or a tensor that
/// the ops read. At ties of min and max the first input carries the gradient; comparisons, logical
/// ops, floor and ceil carry none.
double modified_score_gradient(const graph::ScoreModifier& modifier, graph::TensorId by,
                               double score, double gradient, const Cell& cell,
                               const Values& values);

/// The caller's own derivative: bprop's score_out when its score_in is `gradient`; it may read what
/// `forward` (null if there is none) makes of `score`.
double given_score_gradient(const graph::ScoreModifier& bprop, const graph::ScoreModifier* forward,
                            double score, double gradient, const Cell& cell, const Values& values);

}  // namespace heddle::reference
