// Products of dense matrices, what dots and convolutions are computed by.
#pragma once

#include <vector>

#include "hlo/interpreter/machine.h"

namespace heddle::hlo {

/// [batch][rows][depth] times [batch][depth][columns].
struct ProductExtents {
  int64_t batch = 1;
  int64_t rows = 1;
  int64_t columns = 1;
  int64_t depth = 1;
};

/// Counts the work of a product towards max_steps.
Status spend_on_product(Machine& machine, const Instruction& x, const ProductExtents& extents);

/// The product of two floating arrays, dense, in `x`'s type and with these dims, as many elements
/// as batch * rows * columns; summed in f32, or in f64 if any of the three is.
Result<Literal> floating_product(Machine& machine, const Instruction& x,
                                 const ProductExtents& extents, Literal lhs, Literal rhs,
                                 const std::vector<int64_t>& dims);

}  // namespace heddle::hlo
