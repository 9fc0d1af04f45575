// Legalisation: an attention as one that kernels take, after and before copies of its tensors. What
// is read becomes of one type, codes of keys and values the numbers that they stand for, a sink one
// of f32 for each head; results that kernels do not write in theirs are converted; and rows, where
// kernels want them so, lie dense, padded with columns of zeros.
#pragma once

#include <optional>

#include "engine/cuda/sequence.h"

namespace heddle::engine::cuda {

/// What kernels ask of rows: nothing; that they start and end on 16 bytes; or that the copy engine
/// can move them, multiples of 8 columns at strides which are not 0.
enum class Rows { as_they_lie, on_16_bytes, for_copy_engine };

/// None of a problem that is as asked, and of one that rotates, whose rotations come first. Rows
/// are copied only where that pays: for more than a few queries and keys, and never pages and
/// rings.
std::optional<Stages> legal_stages(const problem::AttentionProblem& problem, Rows rows);
std::optional<Stages> legal_stages(const problem::AttentionBackwardProblem& problem, Rows rows);

}  // namespace heddle::engine::cuda
