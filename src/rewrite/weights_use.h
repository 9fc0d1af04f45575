// What a program needs a softmax's weights for, beside what calls compute in their place.
#pragma once

#include <string>

#include "rewrite/liveness.h"

namespace heddle::rewrite {

/// The first result, or thing smaller than the weights, that is made of them and no step of the
/// softmax or of its gradient: "%name", and its line where the program says it. `weights` is the
/// softmax's exponential; `liveness` is of a module whose instructions in `replaced` come from
/// calls.
std::string what_needs(const hlo::Instruction& weights, const Liveness& liveness,
                       const Liveness::Replaced& replaced);

}  // namespace heddle::rewrite
