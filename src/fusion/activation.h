// Activations and their derivatives as nodes of an expression.
#pragma once

#include "graph/graph.h"
#include "problem/score_builder.h"

namespace heddle::fusion {

/// An activation of `a`; of a derivative's mode, `a` times the slope at `b`.
problem::ScoreBuilder::Node apply_activation(problem::ScoreBuilder& builder,
                                             graph::PointwiseMode mode,
                                             const graph::ActivationNumbers& numbers,
                                             problem::ScoreBuilder::Node a,
                                             problem::ScoreBuilder::Node b);

}  // namespace heddle::fusion
