// A dot that sums nothing, as an einsum of weights and a factor for each head is, is a product of
// arrays brought to one shape. As such it is an operation on each element, like the others that
// stand around a softmax.
#pragma once

#include "core/status.h"
#include "hlo/module.h"

namespace heddle::rewrite {

/// Those dots of which one operand has as many elements as the result.
Status write_outer_products_as_multiplications(hlo::Computation& computation);

}  // namespace heddle::rewrite
