// One problem of any kind, as an engine is asked to plan it.
#pragma once

#include <variant>

#include "problem/attention.h"
#include "problem/cache_append.h"
#include "problem/channel_norm.h"
#include "problem/fp8_attention.h"
#include "problem/pointwise.h"
#include "problem/streaming.h"

namespace heddle::problem {

using Problem =
    std::variant<AttentionProblem, AttentionBackwardProblem, Fp8AttentionProblem,
                 Fp8AttentionBackwardProblem, NormProblem, NormBackwardProblem, ChannelNormProblem,
                 ChannelNormBackwardProblem, RopeProblem, CacheAppendProblem, PointwiseProblem>;

}  // namespace heddle::problem
