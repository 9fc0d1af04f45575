// Past layout assignment XLA writes views of memory as bitcasts: numbers in the order of the
// operand's layout, read in the order of the result's. Said without layouts that is a reshape, with
// a transpose before it and one after where the order is not row-major.
#pragma once

#include "core/status.h"
#include "hlo/module.h"

namespace heddle::rewrite {

/// Those that keep the element type, between layouts that are an order of dimensions and no more.
Status write_bitcasts_as_reshapes(hlo::Computation& computation);

}  // namespace heddle::rewrite
