// Attention on fp8 operands as one of 16 bits, which hold every fp8 exactly: tensors are widened
// before it, and its results, in f32, scaled and rounded behind it. P and dP are held in 16 bits:
// their scales are but factors, and nothing saturates.
#pragma once

#include "engine/cuda/sequence.h"

namespace heddle::engine::cuda {

/// Of operands that are dense or ragged.
Result<Lowering> lower_fp8_by_16_bits(const problem::Fp8AttentionProblem& problem,
                                      const Target& target);
Result<Lowering> lower_fp8_by_16_bits(const problem::Fp8AttentionBackwardProblem& problem,
                                      const Target& target);

}  // namespace heddle::engine::cuda
