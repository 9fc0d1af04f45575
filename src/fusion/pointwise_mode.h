// Pointwise modes of the graph as nodes of an expression.
#pragma once

#include "graph/graph.h"
#include "problem/score_builder.h"

namespace heddle::fusion {

/// `mode` of as many nodes as it has inputs. Not of gen_index, which has none.
problem::ScoreBuilder::Node apply_mode(problem::ScoreBuilder& builder, graph::PointwiseMode mode,
                                       const graph::ActivationNumbers& numbers,
                                       problem::ScoreBuilder::Node a,
                                       problem::ScoreBuilder::Node b = -1,
                                       problem::ScoreBuilder::Node c = -1);

}  // namespace heddle::fusion
