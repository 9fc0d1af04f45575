// Masks by evaluation: a predicate made of iotas, literals and integer arithmetic is computed at
// every (row, key) and classified from what it is, not from how it was written.
#pragma once

#include <optional>
#include <vector>

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

/// The values of `element` over a grid of its variables, each from first to last; row-major in the
/// order of `vars`. Nothing if it depends on anything but iotas and literals.
struct Grid {
  std::vector<Var> vars;
  std::vector<double> values;
};
struct Extent {
  Var var;
  int64_t begin, end;
};
std::optional<Grid> evaluate(Elements& elements, const Element& element,
                             const std::vector<Extent>& extents);

/// The mask as a band over rows and keys, digits most significant first. Fails with a reason if it
/// depends on other axes, on data, or is no band.
Result<Band> band_of(Elements& elements, const Algebra& algebra, const Mask& mask,
                     const Index& rows, const Index& keys);

/// The variables that a mask's predicates depend on.
std::vector<Var> support(const Algebra& algebra, const Mask& mask);

}  // namespace heddle::rewrite
