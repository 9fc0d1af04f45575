// What the CPU engine can run: every operand of an attention problem held against its contract, and
// a sentence for the first that breaks it. Nothing is allocated by size before this has passed.
#pragma once

#include "core/status.h"
#include "problem/attention.h"

namespace heddle::engine::cpu {

Status check(const problem::AttentionProblem& problem);
Status check(const problem::AttentionBackwardProblem& problem);

}  // namespace heddle::engine::cpu
