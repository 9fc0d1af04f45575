// Dots that XLA merged because they share an operand: the others joined, one dot, and its result
// cut again. Where the parts are scores or weights of softmaxes of their own, each is a dot again.
#pragma once

#include "core/status.h"
#include "hlo/module.h"

namespace heddle::rewrite {

/// Whether `x` is an exponential that is summed.
bool is_softmax(const hlo::Instruction* x);

Status take_merged_dots_apart(hlo::Computation& computation);

}  // namespace heddle::rewrite
