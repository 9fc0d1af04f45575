// A region's softmax in the algebra: weights exp(z), their sum over the keys, probabilities.
#pragma once

#include "core/status.h"
#include "rewrite/region.h"
#include "rewrite/score.h"

namespace heddle::rewrite {

/// One term more in the sum of a row's weights, exp(place) or exp(value), that is no key's.
struct Sink {
  std::optional<Element> place;
  double value = 0;
};

struct Softmax {
  /// Set where the weights are those of a part of the keys, exp(z - number), of a number that the
  /// program has of each row, the log-sum-exp of all keys mostly. Nothing else is assumed of it.
  std::optional<Element> number;
  PolyId z = 0;
  Poly weight;       // exp(z)
  Poly total;        // sum over keys of exp(z), and the sink's
  Poly probability;  // exp(z) / total
  std::optional<Sink> sink;
  Poly sink_probability;  // exp(sink) / total
  Score score;
};

/// Fails with a reason if the region's exponential is not normalised over some axis, or its scores
/// are not those of attention.
Result<Softmax> softmax_of(Algebra& algebra, Region& region);

/// The same of an exponential of scores less a number of each row.
Result<Softmax> softmax_by_number(Algebra& algebra, Region& region);

/// The same with the sink that the region adds to the sum of its weights; nothing if it adds none.
std::optional<Softmax> with_sink(Algebra& algebra, Region& region, const Softmax& softmax);

/// How the bound variables of a sum that holds the softmax's weight are named by the region's keys;
/// nothing if the sum does not run over all keys and only them.
std::optional<Renaming> name_keys(Algebra& algebra, const Softmax& softmax,
                                  const std::vector<Var>& keys, AtomId sum);
/// The same of `rows`, axes of the queries.
std::optional<Renaming> name_rows(Algebra& algebra, const Softmax& softmax,
                                  const std::vector<Var>& rows, AtomId sum);

}  // namespace heddle::rewrite
