// What Hopper's kernels read in every cell of a score by tiles, kernels/sm90/score_tile.cuh: a
// bias, a boolean mask.
#pragma once

#include <initializer_list>
#include <string>

#include "problem/facts.h"
#include "sm90/score_tile_arguments.h"

namespace heddle::engine::cuda {

/// The first operand that the expressions read in every cell and that the copy engine can move:
/// 16-bit values, booleans or (`singles`) f32, contiguous along keys. Absent if there is none.
problem::OperandId score_tile_operand(
    const problem::AttentionStructure& structure, const problem::AttentionFacts& facts,
    std::initializer_list<const problem::ScoreExpression*> expressions, bool singles);

/// How an operand of this type reaches the score.
sm90::Tiled tiled_of(DataType dtype);

/// All but the map, which is made of the operand's address.
sm90::TiledOperand score_tile_arguments(const problem::AttentionSizes& sizes,
                                        problem::OperandId operand);

}  // namespace heddle::engine::cuda
