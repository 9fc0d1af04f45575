// A score expression as CUDA C++.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/status.h"
#include "problem/facts.h"

namespace heddle::engine::cuda {

/// How exact functions are.
enum class Functions : uint8_t {
  of_16_bits,  ///< as operands of 16 bits see
  of_f32,
  exact,  ///< of f32, and quotients and roots rounded to nearest: 6 / 3 is 2
};

/// A node that is no load as CUDA C++, of the values t0, t1, ... of the nodes before it and of
/// `cell`, which has a member for each other leaf.
std::string node_source(const problem::ScoreExpression& expression, const problem::ScoreNode& node,
                        Functions functions);

/// A device expression struct: `struct <name> { kIdentity; kFiniteMaskRows; kSideBySide;
/// value(Cell) }`, where Cell has dot, row, column, batch, head, q_length, kv_length, loads (and
/// gradient, in derivatives). kFiniteMaskRows: a row of values may be as low as numbers that stand
/// for -inf. kSideBySide: cells_side_by_side(). Loads are numbered in the order of `loads`, which
/// grows by those this expression adds. Functions are as exact as the structure's Q wants them.
/// With `facts`, loads of operands broadcast along rows or columns say so: they are made once.
/// The operand `tiled` is no load but the Cell's `tiled`. Where the structure has row maxima and
/// sums, products are rounded: fused with what they are added to by one kernel and not by another,
/// scores would differ.
std::string score_source(const std::string& name, const problem::ScoreExpression& expression,
                         const problem::AttentionStructure& structure,
                         std::vector<problem::OperandId>& loads,
                         const problem::AttentionFacts* facts = nullptr,
                         problem::OperandId tiled = problem::kAbsent);

/// Whether the value is the dot product, or -inf where other things than dots say so: then it has
/// whatever unit the dot has.
bool only_hides(const problem::ScoreExpression& expression);

/// Whether a whole row may be as low as a number that stands for -inf: one that the expression
/// has, or that an operand brings. One number of a head's that only scales hides nothing; without
/// `facts` none is one number.
bool may_have_finite_mask_rows(const problem::ScoreExpression& expression,
                               const problem::AttentionStructure& structure,
                               const problem::AttentionFacts* facts);

/// Whether a kernel takes as many.
Status check_loads(const std::vector<problem::OperandId>& loads);

}  // namespace heddle::engine::cuda
