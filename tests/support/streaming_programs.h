// Random programs of ops that read and write each element once: norms and RoPE standing alone.
#pragma once

#include "support/program.h"

namespace heddle::testing {

/// What norm programs are drawn from.
struct NormOptions {
  /// Chance that rows and their strides are multiples of 8 elements, as tensors in use are.
  double aligned = 0;
  /// Most elements of such a row.
  int64_t max_aligned_columns = 0;
  /// Chance that what is normalised is the sum of x and a residual.
  double residual = 0;
};

/// An rms_norm node over 1 to 4 row dims and 1 or 2 normalised ones, x, weight and y of any float
/// types, rows with random strides.
Program random_rms_norm(Random& random, const NormOptions& options);
Program random_rms_norm(Random& random);
/// Its backward; inv_variance is the definition's own for x.
Program random_rms_norm_backward(Random& random, const NormOptions& options);
Program random_rms_norm_backward(Random& random);
/// The same of layer_norm, some with rows far from 0. Its backward's mean is not the definition's
/// own, but near it.
Program random_layer_norm(Random& random, const NormOptions& options);
Program random_layer_norm(Random& random);
Program random_layer_norm_backward(Random& random, const NormOptions& options);
Program random_layer_norm_backward(Random& random);
/// The program of a norm anew with numbers of x that are NaN or infinite.
Program with_no_numbers(Random& random, Program program);
/// A position from 0 to `last`; seldom one outside of any table, or as far as 64 bits reach.
double random_position(Random& random, int64_t last);
/// A rope or rope_backward node: both pairings, angles or tables, positions or none.
Program random_rope(Random& random);

}  // namespace heddle::testing
