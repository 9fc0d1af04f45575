// How much code a score expression is: kernels have it in every cell of a tile, and a kernel is to
// compile in two seconds.
#pragma once

#include "problem/score.h"

namespace heddle::engine::cuda {

/// Instructions of a cell's value, about. Functions of `f32` scores are longer.
int instructions(const problem::ScoreExpression& expression, bool f32);

/// Of how many cells Hopper's kernels have the code side by side, in a loop over a tile's: 8 or 4;
/// 0: no loop, short code is there for each of a tile's cells.
int cells_side_by_side(const problem::ScoreExpression& expression, bool f32);

/// Whether the node is a modulo, in whole numbers, of a short sum of positions and lengths: as
/// masks have it.
bool is_modulo_of_positions(const problem::ScoreExpression& expression,
                            const problem::ScoreNode& node);

}  // namespace heddle::engine::cuda
