// How much code a score expression is: kernels have it in every cell of a tile, and a kernel is to
// compile in two seconds.
#pragma once

#include "problem/score.h"

namespace heddle::engine::cuda {

/// From here on Hopper's forward computes a tile's cells in a loop instead of one after the other.
inline constexpr int kLongScore = 14;

/// Instructions of a cell's value, about. Functions of `f32` scores are longer.
int instructions(const problem::ScoreExpression& expression, bool f32);

/// Whether the node is a modulo, in whole numbers, of a short sum of positions and lengths: as
/// masks have it.
bool is_modulo_of_positions(const problem::ScoreExpression& expression,
                            const problem::ScoreNode& node);

}  // namespace heddle::engine::cuda
