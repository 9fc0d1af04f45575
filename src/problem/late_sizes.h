// Sizes that come at an execution: which of a planned problem's may be others then.
#pragma once

#include "core/status.h"
#include "problem/problem.h"

namespace heddle::problem {

/// Fails unless `given` is `planned` but for batch, lengths, strides and what is measured in these.
Status check_late(const Problem& planned, const Problem& given);

}  // namespace heddle::problem
