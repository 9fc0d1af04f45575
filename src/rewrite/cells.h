// Elements that the program's text alone decides, computed for every index within given extents,
// as the program computes them.
#pragma once

#include <optional>
#include <vector>

#include "rewrite/arithmetic.h"
#include "rewrite/steps.h"

namespace heddle::rewrite {

struct Extent {
  Var var;
  int64_t begin, end;
};

/// The steps of an element that is made of iotas, literals and sums over windows of them by known
/// operations; nothing for any other.
std::optional<std::vector<Step>> fixed_steps_of(Elements& elements, const Element& element);

/// `values` repeated along the dimensions of size 1 that have more in `dims`; nothing if there is
/// no memory for that.
std::optional<hlo::Literal> spread(const hlo::Literal& values, const std::vector<int64_t>& dims);

/// Numbers computed for all cells of `extents`, an upper bound.
double work_of(const std::vector<Step>& steps, const std::vector<Extent>& extents);

class Cells {
 public:
  explicit Cells(Elements& elements) : elements_(elements) {}

  /// The last of fixed steps over all of `extents`, row-major in their order, of size 1 where it
  /// does not vary. Nothing if it varies along anything else, or where floating numbers would have
  /// to be rounded.
  std::optional<hlo::Literal> evaluate(const std::vector<Step>& steps,
                                       const std::vector<Extent>& extents);

 private:
  std::optional<hlo::Literal> step(const Step& step, std::vector<hlo::Literal>& values,
                                   const std::vector<Extent>& extents);
  std::optional<hlo::Literal> leaf(const Element& e, const std::vector<Extent>& extents);

  Elements& elements_;
  Arithmetic arithmetic_;
};

}  // namespace heddle::rewrite
