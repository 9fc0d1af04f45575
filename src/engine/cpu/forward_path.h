// The path that serves an attention's forward, and what follows of it for whoever makes the
// forward's scores again: a log-sum-exp of 10^9, or a maximum, says what keys weigh only beside
// scores whose products were summed in the same order.
#pragma once

#include "engine/cpu/kernel_shape.h"
#include "problem/attention.h"
#include "problem/attention_path.h"

namespace heddle::engine::cpu {

/// Rows that the heads of a group have together.
int64_t group_rows(const problem::AttentionSizes& sizes);

/// Of a forward, and of the forward that left the statistics a backward reads.
problem::AttentionPath forward_path(const problem::AttentionStructure& structure,
                                    const problem::AttentionSizes& sizes, const KernelShape& shape,
                                    const problem::AllowedPaths& allowed);

/// How scores are multiplied on the path.
Products products_of(const problem::AttentionStructure& structure, const KernelShape& shape,
                     problem::AttentionPath path);

}  // namespace heddle::engine::cpu
