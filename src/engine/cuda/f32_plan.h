// f32 attention on Hopper: kernels on pairs of f16, which take most values, and the general ones,
// which take any. The device finds out which; those of the other kind leave at once.
#pragma once

#include <memory>

#include "engine/cuda/queue.h"

namespace heddle::engine::cuda {

/// What both plans keep at the start of their workspace, which is the same: the word that
/// attention::ForwardParameters::unfit points to.
inline constexpr int64_t kUnfitBytes = 256;

/// `pairs` finds out and runs first.
std::shared_ptr<const QueuedPlan> plan_f32(std::shared_ptr<const QueuedPlan> pairs,
                                           std::shared_ptr<const QueuedPlan> general);

}  // namespace heddle::engine::cuda
