// Attention sinks written as one column more: scores beside a column that is no key's, a softmax
// over both, and the column cut off again, or multiplied by zeros that stand beside the values.
// Every value over keys and column is computed as two, one over the keys and one of the column, so
// that what is left is a softmax over the keys whose sum has one term more. That is the same
// program; no match is needed for it.
#pragma once

#include "core/status.h"
#include "hlo/module.h"

namespace heddle::rewrite {

/// Whether anything was changed. What nobody reads any more is not removed.
bool take_sink_columns_apart(hlo::Computation& computation);

}  // namespace heddle::rewrite
