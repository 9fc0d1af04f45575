// Random programs of instance norm and batch norm.
#pragma once

#include "support/program.h"

namespace heddle::testing {

/// A node over x of rank 2 to 5, its dims nested in a random order with gaps, often channels last,
/// some with channels far from 0; tensors of any float types, with running statistics or none.
Program random_instance_norm(Random& random);
Program random_batch_norm(Random& random);
/// Their backwards. The mean is not the definition's own, but near it.
Program random_instance_norm_backward(Random& random);
Program random_batch_norm_backward(Random& random);

}  // namespace heddle::testing
