// New rows put into caches of K and V, and queries rotated with them, in one launch.
#pragma once

#include "engine/cuda/lowering.h"
#include "problem/cache_append.h"
#include "streaming/config.h"

namespace heddle::engine::cuda {

/// Chooses the kernel, or says why there is none.
Result<streaming::CacheAppendConfig> configure_cache_append(
    const problem::CacheAppendProblem& problem);

Result<Lowering> lower_cache_append(const problem::CacheAppendProblem& problem,
                                    const Target& target);

}  // namespace heddle::engine::cuda
