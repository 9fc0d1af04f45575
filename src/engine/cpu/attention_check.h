// What of a valid attention problem the CPU engine does not run, in words.
#pragma once

#include "core/status.h"
#include "problem/attention.h"

namespace heddle::engine::cpu {

Status check(const problem::AttentionProblem& problem);
Status check(const problem::AttentionBackwardProblem& problem);
/// Limits of its extents, of either pass.
Status check_extents(const problem::AttentionStructure& structure,
                     const problem::AttentionSizes& sizes);

}  // namespace heddle::engine::cpu
