// Pointwise ops on tensors: a chain or a DAG of them, whose inner values never reach memory, is one
// problem.
#pragma once

#include <vector>

#include "problem/operand.h"
#include "problem/score.h"

namespace heddle::problem {

/// Each element of a result is its node's value at that place. Nodes are those of score expressions
/// but for the dot, the gradient and lengths: batch, head, row and column are the place's indices,
/// and a load reads the element there, broadcast where the operand's dims are 1. All in f32,
/// rounded once where a result is written; integers saturate, and NaN is their 0. Every input of a
/// place is read before any result of it is written, so a result may lie where an input of its own
/// layout does.
struct PointwiseStructure : OperandTypes {
  struct Result {
    int32_t node = 0;
    OperandId y = kAbsent;

    friend bool operator==(const Result&, const Result&) = default;
  };
  std::vector<ScoreNode> nodes;  ///< in dependency order
  std::vector<Result> results;   ///< of the same dims

  friend bool operator==(const PointwiseStructure&, const PointwiseStructure&) = default;
};

/// Nodes a problem may have.
inline constexpr size_t kMostPointwiseNodes = 2048;

struct PointwiseProblem {
  PointwiseStructure structure;
  OperandLayouts sizes;

  const Dims& dims() const { return sizes.layout(structure.results.front().y).dims; }
};

/// The same work with its dims in the order in which the first result lies in memory, the closest
/// elements last, and neighbouring dims joined that every operand steps through as one. Of a
/// problem that check() has passed.
PointwiseProblem in_memory_order(const PointwiseProblem& problem);

}  // namespace heddle::problem
