// Random programs of attention on fp8 operands: lengths, bounds, heads, types and scales.
#pragma once

#include "support/program.h"
#include "support/random.h"

namespace heddle::testing {

/// What fp8 programs are drawn from.
struct Fp8Options {
  /// As Hopper's own kernels take them: f8e4m3 alone, results too, rows that its copy engine
  /// copies, and heads of 64 or 128 columns. The backward then has heads of 128, and no lengths.
  bool for_hopper = false;
};

/// An sdpa_fp8 node.
Program random_sdpa_fp8(Random& random, const Fp8Options& options = {});
/// An sdpa_fp8_backward node, of what the definition of its forward makes.
Program random_sdpa_fp8_backward(Random& random, const Fp8Options& options = {});

}  // namespace heddle::testing
