// Random programs of pointwise ops: DAGs on strided tensors, some of whose values reach memory.
#pragma once

#include "support/program.h"

namespace heddle::testing {

/// 1 to 8 pointwise nodes over tensors of rank 1 to 4, of any types, any strides and dims of 1
/// anywhere; constants and numbers passed by value. Every mode, on numbers that it neither leaves
/// undefined nor makes of nearby numbers far ones.
Program random_pointwise(Random& random);
/// Those that the mode has, some of them unset.
void random_numbers(Random& random, graph::PointwiseMode mode, graph::ActivationNumbers& numbers);
/// A norm between pointwise ops: what passes between is virtual, but perhaps for the sum it is of.
Program random_pointwise_around_norm(Random& random);

}  // namespace heddle::testing
