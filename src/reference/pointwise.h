// What a pointwise op makes of its inputs' elements.
#pragma once

#include "graph/graph.h"

namespace heddle::reference {

/// Truth values are 0 and 1, and any number but 0 is true. Not of gen_index, which has no inputs.
double apply(graph::PointwiseMode mode, double a, double b = 0, double c = 0);

}  // namespace heddle::reference
