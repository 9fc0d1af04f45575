// A program at less than its sizes, as a caller has it that planned for more: tensors keep their
// memory and strides.
#pragma once

#include "support/program.h"

namespace heddle::testing {

/// `program` at a batch and lengths drawn from one to its own. It has an sdpa or sdpa_backward node
/// and rope nodes around it, or one other node. Lengths that prefix sums or offsets hold stay.
Program smaller(Random& random, const Program& program);

}  // namespace heddle::testing
