// What a valid problem is, whichever engine runs it: ids that are operands, dims that agree, types
// that the contract fixes, results that do not lie on top of themselves. Engines ask this before
// their own limits, and nothing is allocated by size before it has passed.
#pragma once

#include "core/status.h"
#include "problem/problem.h"

namespace heddle::problem {

/// A sentence for the first rule that the problem breaks.
Status check(const Problem& problem);

Status check(const AttentionProblem& problem);
Status check(const AttentionBackwardProblem& problem);
Status check(const Fp8AttentionProblem& problem);
Status check(const Fp8AttentionBackwardProblem& problem);
Status check(const NormProblem& problem);
Status check(const NormBackwardProblem& problem);
Status check(const ChannelNormProblem& problem);
Status check(const ChannelNormBackwardProblem& problem);
Status check(const RopeProblem& problem);
Status check(const CacheAppendProblem& problem);
Status check(const PointwiseProblem& problem);

}  // namespace heddle::problem
