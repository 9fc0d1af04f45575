// Numbers of which the program's text says that what they divide is no larger for it, or as small
// as they are: those of 1 and more, and a mean of squares that an epsilon is added to, as in norms.
#pragma once

#include "rewrite/element.h"

namespace heddle::rewrite {

/// Whether each element of `x` is such a number, whatever finite ones the data are.
bool is_positive(Elements& elements, int frame, const hlo::Instruction* x);

}  // namespace heddle::rewrite
