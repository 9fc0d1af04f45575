// Sizes that come at an execution: which of a planned problem's may be others then.
#pragma once

#include "core/status.h"
#include "problem/problem.h"

namespace heddle::problem {

/// `given`, to be run by the kernels of `planned`. Fails unless it is `planned` but for batch,
/// lengths, strides and what is measured in these.
Result<Problem> at_late_sizes(const Problem& planned, Problem given);

}  // namespace heddle::problem
