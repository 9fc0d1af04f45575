// New rows put into caches of K and V on the CPU.
#pragma once

#include <memory>

#include "engine/engine.h"

namespace heddle::engine::cpu {

Result<std::shared_ptr<const Plan>> plan_cache_append(const problem::CacheAppendProblem& problem);

}  // namespace heddle::engine::cpu
