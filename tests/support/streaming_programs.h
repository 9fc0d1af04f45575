// Random programs of ops that read and write each element once: RMSNorm and RoPE standing alone.
#pragma once

#include "support/program.h"

namespace heddle::testing {

/// An rms_norm node over 1 to 4 row dims and 1 or 2 normalised ones, x, weight and y of any float
/// types, rows with random strides.
Program random_rms_norm(Random& random);
/// Its backward; inv_variance is the definition's own for x.
Program random_rms_norm_backward(Random& random);
/// A rope or rope_backward node: both pairings, angles or tables, positions or none.
Program random_rope(Random& random);

}  // namespace heddle::testing
