// What a score expression means, one cell at a time in f64: what constants are folded with and what
// engines' own evaluation is tested against.
#pragma once

#include <functional>

#include "problem/score.h"

namespace heddle::problem {

/// The op applied to its operands (as many as arity() says; the rest are ignored). Predicates yield
/// 0 or 1; minimum and maximum yield their first operand at a tie, and NaN of a NaN; modulo has the
/// sign of `a`.
double apply(ScoreOp op, double a, double b, double c);

/// What a cell's leaves hold.
struct ScoreLeaves {
  double dot = 0, row = 0, column = 0, batch = 0, head = 0;
  double q_length = 0, kv_length = 0, gradient = 0;
  std::function<double(OperandId)> load;  ///< needed only by expressions with loads
};

double evaluate(const ScoreExpression& expression, const ScoreLeaves& leaves);

}  // namespace heddle::problem
