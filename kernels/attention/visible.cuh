// Which keys a query row sees: the interval lo(row) <= key < hi(row), the meet of constants and of
// bounds that move with the row (causal and sliding-window masks, either alignment).
#pragma once

#include "../ptx/types.cuh"

namespace heddle::attention {

/// Bounds as the host knows them. "Diagonal" bounds move with the row:
///   key <  row + upper_diagonal (+ kv_length - q_length if upper_bottom_right), likewise lower.
struct Bounds {
  i32 lower, upper;  ///< constants; upper is also cut at the batch entry's kv_length
  i32 lower_diagonal, upper_diagonal;
  i32 lower_bottom_right, upper_bottom_right;  ///< 0 or 1
};

/// Bounds resolved for one batch entry. kLowerVaries / kUpperVaries: the diagonal ones exist.
template <bool kLowerVaries, bool kUpperVaries>
struct VisibleKeys {
  i32 lower, upper, lower_diagonal, upper_diagonal;

  HEDDLE_DEVICE VisibleKeys(const Bounds& bounds, int q_length, int kv_length)
      : lower(bounds.lower > 0 ? bounds.lower : 0),
        upper(bounds.upper < kv_length ? bounds.upper : kv_length),
        lower_diagonal(bounds.lower_diagonal +
                       (bounds.lower_bottom_right ? kv_length - q_length : 0)),
        upper_diagonal(bounds.upper_diagonal +
                       (bounds.upper_bottom_right ? kv_length - q_length : 0)) {}

  HEDDLE_DEVICE int lo(int row) const {
    if constexpr (kLowerVaries) return max_of(lower, row + lower_diagonal);
    return lower;
  }
  HEDDLE_DEVICE int hi(int row) const {
    if constexpr (kUpperVaries) return min_of(upper, row + upper_diagonal);
    return upper;
  }
};

}  // namespace heddle::attention
