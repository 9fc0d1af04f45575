// Which keys a query row sees, an interval lo <= key < hi: row by row, or for all rows of a batch
// entry at once, where a bound is either constant or moves with the row (causal and sliding-window
// masks, either alignment).
#pragma once

#include "operand.cuh"

namespace heddle::attention {

/// The keys lo <= j < hi that query row `row` sees.
struct KeyInterval {
  int lo, hi;
};

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

/// The bounds of one batch entry, all kinds of them met. Diagonal ones count from the row.
struct BatchBounds {
  i32 lower, upper, lower_diagonal, upper_diagonal;
};

HEDDLE_DEVICE BatchBounds resolve_bounds(const ForwardParameters& p, int q_length, int kv_length) {
  constexpr i32 kFar = kFarthestBound;
  BatchBounds met{0, kv_length, -kFar, kFar};
#pragma unroll 1
  for (int n = 0; n < p.bound_count; ++n) {
    const Bound& bound = p.bounds[n];
    i64 exact = bound.constant;
    if (bound.anchor == Anchor::kv_end) exact += kv_length;
    if (bound.anchor == Anchor::bottom_right) exact += kv_length - q_length;
    const i32 at = static_cast<i32>(exact < -kFar ? -kFar : exact > kFar ? kFar : exact);
    const bool diagonal = bound.anchor == Anchor::top_left || bound.anchor == Anchor::bottom_right;
    // Selected by value: a reference to one of two would put both into local memory.
    const bool cuts = bound.upper != 0, raises = !cuts;
    if (cuts && diagonal) met.upper_diagonal = min_of(met.upper_diagonal, at);
    if (cuts && !diagonal) met.upper = min_of(met.upper, at);
    if (raises && diagonal) met.lower_diagonal = max_of(met.lower_diagonal, at);
    if (raises && !diagonal) met.lower = max_of(met.lower, at);
  }
  return met;
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
