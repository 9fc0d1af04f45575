// Values that weights of several softmaxes weigh together, as differential attention has them:
// (P1 - a * P2) V is P1 V - a * P2 V, which is an attention each. So is the gradient of V.
#pragma once

#include "core/status.h"
#include "hlo/module.h"

namespace heddle::rewrite {

Status take_sums_of_weights_apart(hlo::Computation& computation);

}  // namespace heddle::rewrite
