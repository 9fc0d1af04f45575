// Attention attributes as score expressions and their derivatives.
#pragma once

#include "fusion/operands.h"
#include "graph/graph.h"
#include "problem/score.h"

namespace heddle::fusion {

/// What a score expression is built in: where loads become operands, and the units of the dot.
struct ScoreContext {
  const graph::Graph& graph;
  const graph::AttentionAttributes& attributes;
  Operands& operands;
  int64_t q_heads = 0;
  bool log2_input = false;         ///< the scaled dot is in log2 units
  bool lengths_are_known = false;  ///< the problem has q_lengths and kv_lengths
};

/// score_mod alone; the dot itself if there is none.
problem::ScoreExpression modified_dot(const ScoreContext& context);
/// `score` + bias + ALiBi, terms in natural units multiplied by log2 e under log2_input.
problem::ScoreExpression with_additive_terms(const problem::ScoreExpression& score,
                                             const ScoreContext& context);

/// dL/d(scaled dot) from dL/d(score): the caller's own score_mod_bprop if given, else score_mod
/// differentiated. `score` is the modified dot, masks that became bounds taken out.
problem::ScoreExpression dot_gradient(const problem::ScoreExpression& score,
                                      const std::optional<graph::ScoreModifier>& bprop,
                                      const ScoreContext& context);
/// dL/d(bias) of a cell from dL/d(score).
problem::ScoreExpression bias_gradient(bool log2_input);

}  // namespace heddle::fusion
