// Which keys a query row sees, an interval lo <= key < hi: row by row, or for all rows of a batch
// entry at once, where a bound is either constant or moves with the row (causal and sliding-window
// masks, either alignment).
#pragma once

#include "bounds.h"
#include "operand.cuh"

namespace heddle::attention {

HEDDLE_DEVICE KeyInterval visible_keys(const Bound* bounds, int count, int row, int q_length,
                                       int kv_length) {
  i64 lo = 0, hi = kv_length;
  for (int n = 0; n < count; ++n) {
    const Bound& bound = bounds[n];
    i64 at = bound.constant;
    // Selections, not a switch: around its jump table the compiler keeps registers in local memory.
    const Anchor anchor = bound.anchor;
    if (anchor == Anchor::top_left || anchor == Anchor::bottom_right) at += row;
    if (anchor == Anchor::kv_end || anchor == Anchor::bottom_right) at += kv_length;
    if (anchor == Anchor::bottom_right) at -= q_length;
    if (bound.upper) {
      hi = at < hi ? at : hi;
    } else {
      lo = at > lo ? at : lo;
    }
  }
  return {static_cast<int>(lo > kv_length ? kv_length : lo), static_cast<int>(hi < 0 ? 0 : hi)};
}

HEDDLE_DEVICE BatchBounds resolve_bounds(const ForwardParameters& p, int q_length, int kv_length) {
  return resolve_bounds(p.bounds, p.bound_count, q_length, kv_length);
}

/// kLowerVaries / kUpperVaries: a diagonal bound of the kind exists.
template <bool kLowerVaries, bool kUpperVaries>
struct VisibleKeys {
  BatchBounds bounds;

  HEDDLE_DEVICE int lo(int row) const {
    if constexpr (kLowerVaries) return max_of(bounds.lower, row + bounds.lower_diagonal);
    return bounds.lower;
  }
  HEDDLE_DEVICE int hi(int row) const {
    if constexpr (kUpperVaries) return min_of(bounds.upper, row + bounds.upper_diagonal);
    return bounds.upper;
  }
};

}  // namespace heddle::attention
