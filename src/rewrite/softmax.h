// A region's softmax in the algebra: weights exp(z), their sum over the keys, probabilities.
#pragma once

#include "core/status.h"
#include "rewrite/region.h"
#include "rewrite/score.h"

namespace heddle::rewrite {

struct Softmax {
  PolyId z = 0;
  Poly weight;       // exp(z)
  Poly total;        // sum over keys of exp(z)
  Poly probability;  // exp(z) / total
  Score score;
};

/// Fails with a reason if the region's exponential is not normalised over some axis, or its scores
/// are not those of attention.
Result<Softmax> softmax_of(Algebra& algebra, Region& region);

/// How the bound variables of a sum that holds the softmax's weight are named by the region's keys;
/// nothing if the sum does not run over all keys and only them.
std::optional<Algebra::Renaming> name_keys(Algebra& algebra, const Softmax& softmax,
                                           const std::vector<Var>& keys, AtomId sum);

}  // namespace heddle::rewrite
