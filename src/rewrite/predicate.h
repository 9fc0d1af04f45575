// Masks that the program's text alone decides: a predicate made of iotas, literals and arithmetic
// is classified from what it is at every (row, key), not from how it was written. Mostly it is
// straight bounds, which need no visit of the cells; else they are computed one by one.
#pragma once

#include <optional>

#include "core/status.h"
#include "rewrite/algebra.h"
#include "rewrite/score.h"

namespace heddle::rewrite {

/// The visible keys of row i are those with i - left < j <= i + right (graph contract 1.2, top
/// left); an unset bound does not bound.
struct Band {
  std::optional<int64_t> left, right;
  /// Rows that see no key at all.
  int64_t empty_rows = 0;
};

/// What was found out of masks: many layers have one, and look at it more than once.
struct DecidedMasks {
  std::map<std::vector<int64_t>, Result<Band>> bands;
  std::map<std::vector<int64_t>, Result<int64_t>> fully_masked_rows;
};

/// Whether the program's text alone decides `predicate`.
bool is_fixed(Elements& elements, const Element& predicate);

/// c, if `element` is the index along `axis`, digits most significant first, plus c.
std::optional<int64_t> offset_along(Elements& elements, const Element& element, const Index& axis);

/// The mask as a band over rows and keys, digits most significant first. Fails with a reason if it
/// depends on other axes, on data, or is no band.
Result<Band> band_of(Elements& elements, const Algebra& algebra, const Mask& mask,
                     const Index& rows, const Index& keys);

/// How many rows of a fixed mask see no key, of those that it differs between: in all batch entries
/// and heads, where it varies along them.
Result<int64_t> fully_masked_rows_of(Elements& elements, const Algebra& algebra, const Mask& mask,
                                     const Index& keys);

/// The variables that a mask's predicates depend on.
std::vector<Var> support(const Algebra& algebra, const Mask& mask);

}  // namespace heddle::rewrite
