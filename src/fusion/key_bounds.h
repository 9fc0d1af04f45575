// Masks as key intervals: diagonal bounds, and those masks of a score expression that provably
// leave an interval of keys for each row.
#pragma once

#include <vector>

#include "graph/graph.h"
#include "problem/keys.h"
#include "problem/score.h"

namespace heddle::fusion {

struct Bounds {
  std::vector<problem::KeyBound> bounds;
  std::vector<int64_t> constants;

  void add(bool upper, problem::Anchor anchor, int64_t constant);
  void add(const Bounds& others);
};

/// keep iff col <= row + off + right (if set) and col > row + off - left (if set).
Bounds diagonal_bounds(const graph::AttentionAttributes& attributes);

/// Takes masks off the root of `score` while it is select(keep, s, -inf) (or its mirror) and keep
/// is a conjunction of comparisons of the column with an anchor plus a constant; what is taken off
/// is added to `bounds` and the rest returned. Any other mask stays where it is.
problem::ScoreExpression without_interval_masks(const problem::ScoreExpression& score,
                                                Bounds& bounds);

}  // namespace heddle::fusion
