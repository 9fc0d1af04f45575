// Derivatives of score expressions, symbolically, by reverse accumulation.
//
// At a tie of minimum or maximum the first operand carries the gradient; |x| has derivative 0 at 0;
// predicates, floor and ceil carry none. A select passes the gradient to the branch taken and
// exactly 0 to the other. Where the gradient is 0 (a masked cell) so is the result, however
// singular the derivative is there.
#pragma once

#include "problem/score.h"

namespace heddle::problem {

/// dL/d(dot) of a cell, from a `gradient` leaf that holds dL/d(score) and the leaves of `score`.
ScoreExpression derivative_by_dot(const ScoreExpression& score);
/// dL/d(value loaded from `operand`) of a cell, likewise.
ScoreExpression derivative_by_load(const ScoreExpression& score, OperandId operand);

/// A derivative as a number, which f32 holds, times another one.
struct FactoredDerivative {
  double factor = 1;
  ScoreExpression rest;
};
/// With the constants that the whole derivative is multiplied by as the number.
FactoredDerivative factored(const ScoreExpression& derivative);

}  // namespace heddle::problem
