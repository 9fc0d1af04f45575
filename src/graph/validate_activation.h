// The rules of activations' numbers, of ops standing alone and in score expressions.
#pragma once

#include "graph/rules.h"

namespace heddle::graph {

Status validate_activation(const Rules& rules, PointwiseMode mode,
                           const ActivationNumbers& numbers);

}  // namespace heddle::graph
