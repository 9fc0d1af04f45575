// What a pointwise op makes of its inputs' elements, and its derivatives.
#pragma once

#include "graph/graph.h"

namespace heddle::reference {

/// Truth values are 0 and 1, and any number but 0 is true. Not of gen_index, which has no inputs.
double apply(graph::PointwiseMode mode, const graph::ActivationNumbers& numbers, double a,
             double b = 0, double c = 0);

/// Partial derivatives of apply() by its inputs. At ties of min and max the first input carries it;
/// of what is constant piece by piece they are 0.
struct Partials {
  double a = 0, b = 0, c = 0;
};
Partials partials(graph::PointwiseMode mode, const graph::ActivationNumbers& numbers, double a,
                  double b);

}  // namespace heddle::reference
