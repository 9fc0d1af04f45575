#include "problem/score.h"

namespace heddle::problem {

int arity(ScoreOp op) {
  if (op <= ScoreOp::gradient) return 0;
  if (op <= ScoreOp::modulo) return 2;
  if (op <= ScoreOp::ceil) return 1;
  if (op <= ScoreOp::logical_or) return 2;
  return op == ScoreOp::logical_not ? 1 : 3;
}

const char* name(ScoreOp op) {
  static constexpr const char* kNames[] = {"dot",           "row",
                                           "column",        "batch",
                                           "head",          "constant",
                                           "load",          "q_length",
                                           "kv_length",     "gradient",
                                           "add",           "subtract",
                                           "multiply",      "divide",
                                           "minimum",       "maximum",
                                           "power",         "modulo",
                                           "negate",        "absolute",
                                           "exponential",   "exponential_minus_one",
                                           "logarithm",     "logarithm_plus_one",
                                           "square_root",   "reciprocal_square_root",
                                           "reciprocal",    "tangent_hyperbolic",
                                           "sigmoid",       "error_function",
                                           "sine",          "cosine",
                                           "tangent",       "floor",
                                           "ceil",          "equal",
                                           "not_equal",     "less",
                                           "less_equal",    "greater",
                                           "greater_equal", "logical_and",
                                           "logical_or",    "logical_not",
                                           "select"};
  static_assert(sizeof(kNames) / sizeof(kNames[0]) == static_cast<int>(ScoreOp::select) + 1);
  return kNames[static_cast<int>(op)];
}

}  // namespace heddle::problem
