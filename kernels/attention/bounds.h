// The bounds of a batch entry, all kinds of them met: plain numbers, which the host counts as a
// kernel does where it knows the lengths.
#pragma once

#include "parameters.h"

namespace heddle::attention {

/// The keys lo <= j < hi that a query row sees.
struct KeyInterval {
  int lo, hi;
};

/// Diagonal ones count from the row.
struct BatchBounds {
  int lower, upper, lower_diagonal, upper_diagonal;
};

constexpr BatchBounds resolve_bounds(const Bound* bounds, int count, int q_length, int kv_length) {
  constexpr int kFar = kFarthestBound;
  BatchBounds met{0, kv_length, -kFar, kFar};
#ifdef __CUDA_ARCH__
#pragma unroll 1
#endif
  for (int n = 0; n < count; ++n) {
    const Bound& bound = bounds[n];
    long long exact = bound.constant;
    if (bound.anchor == Anchor::kv_end) exact += kv_length;
    if (bound.anchor == Anchor::bottom_right) exact += kv_length - q_length;
    const int at = static_cast<int>(exact < -kFar ? -kFar : exact > kFar ? kFar : exact);
    const bool diagonal = bound.anchor == Anchor::top_left || bound.anchor == Anchor::bottom_right;
    // Selected by value: a reference to one of two would put both into local memory.
    const bool cuts = bound.upper != 0, raises = !cuts;
    if (cuts && diagonal) met.upper_diagonal = met.upper_diagonal < at ? met.upper_diagonal : at;
    if (cuts && !diagonal) met.upper = met.upper < at ? met.upper : at;
    if (raises && diagonal) met.lower_diagonal = met.lower_diagonal > at ? met.lower_diagonal : at;
    if (raises && !diagonal) met.lower = met.lower > at ? met.lower : at;
  }
  return met;
}

}  // namespace heddle::attention
