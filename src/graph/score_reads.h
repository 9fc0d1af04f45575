// What a score expression reads of an attention's own operands.
#pragma once

#include <algorithm>

#include "graph/graph.h"

namespace heddle::graph {

/// Heddle's extension: a score_mod may read the bias itself, which is then not added after it.
inline bool score_mod_reads_bias(const AttentionAttributes& a) {
  return a.score_mod && a.bias != kNone &&
         std::any_of(a.score_mod->ops.begin(), a.score_mod->ops.end(), [&](const Pointwise& op) {
           return std::find(op.inputs.begin(), op.inputs.end(), a.bias) != op.inputs.end();
         });
}

}  // namespace heddle::graph
