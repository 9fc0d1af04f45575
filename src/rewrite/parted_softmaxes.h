// Softmaxes whose weights are used in parts, as in differential attention whose heads are those of
// one product: (P[:, :H] - a * P[:, H:]) V. Each part is a softmax of scores of its own, forward
// and backward, and what is needed of all is put together of the parts.
#pragma once

#include "core/status.h"
#include "hlo/module.h"

namespace heddle::rewrite {

Status take_parted_softmaxes_apart(hlo::Computation& computation);

}  // namespace heddle::rewrite
