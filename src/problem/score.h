// Score expressions: what happens to the scaled dot product of a query and a key before softmax
// (soft cap, bias, ALiBi, relative positions, masks that are no interval), as a small list of
// nodes in dependency order. Engines compile it (CUDA) or interpret it a tile at a time (CPU).
#pragma once

#include <cstdint>
#include <vector>

#include "problem/operand.h"

namespace heddle::problem {

enum class ScoreOp : uint8_t {
  // Leaves.
  dot,        ///< scale * (q . k), f32
  row,        ///< query index i (within its sequence)
  column,     ///< key index j
  batch,      ///< batch index
  head,       ///< query head index
  constant,   ///< `value`
  load,       ///< element (batch, head, row, column) of `operand`, broadcast where its dims are 1
  q_length,   ///< query length of this batch entry
  kv_length,  ///< key length of this batch entry
  gradient,   ///< in derivatives only: dL/d(score) of this cell
  // Arithmetic, on f32 unless said otherwise.
  add,
  subtract,
  multiply,
  divide,
  minimum,
  maximum,
  power,
  modulo,
  negate,
  absolute,
  exponential,
  exponential_minus_one,
  logarithm,
  logarithm_plus_one,
  square_root,
  reciprocal_square_root,
  reciprocal,
  tangent_hyperbolic,
  sigmoid,
  error_function,
  sine,
  cosine,
  tangent,
  floor,
  ceil,
  // Predicates (0 or 1) and selection.
  equal,
  not_equal,
  less,
  less_equal,
  greater,
  greater_equal,
  logical_and,
  logical_or,
  logical_not,
  select,  ///< a != 0 ? b : c; the branch not taken does not leak (NaN, inf)
};

/// Number of operands `op` takes: 0 for leaves, then 1, 2 or 3 (select).
int arity(ScoreOp op);
/// The op's name as sentences print it.
const char* name(ScoreOp op);

struct ScoreNode {
  ScoreOp op = ScoreOp::dot;
  int32_t a = -1, b = -1, c = -1;  ///< indices of earlier nodes
  double value = 0;                ///< of a constant
  OperandId operand = kAbsent;     ///< of a load

  friend bool operator==(const ScoreNode&, const ScoreNode&) = default;
};

struct ScoreExpression {
  std::vector<ScoreNode> nodes{ScoreNode{}};  ///< by default the scaled dot itself
  int32_t root = 0;

  bool is_identity() const { return nodes[root].op == ScoreOp::dot; }
  friend bool operator==(const ScoreExpression&, const ScoreExpression&) = default;
};

/// The gradient wanted for a broadcast operand that the score loads (dBias): the sum of
/// `derivative` over the dims where `gradient`'s is 1, written there.
struct LoadGradient {
  OperandId load = kAbsent;  ///< if it has the gradient's dims
  OperandId gradient = kAbsent;
  ScoreExpression derivative;  ///< dL/d(load) of one cell, from `gradient` leaves and the forward's

  friend bool operator==(const LoadGradient&, const LoadGradient&) = default;
};

}  // namespace heddle::problem
