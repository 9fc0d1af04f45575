// Visible keys: for query row i of batch b the keys lo <= j < hi, the meet of simple bounds. What
// is no interval per row stays in the score expression (or is a block mask).
#pragma once

#include <cstdint>
#include <vector>

namespace heddle::problem {

/// What a bound is measured from.
enum class Anchor : uint8_t {
  start,         ///< the constant alone
  kv_end,        ///< kv_length(b)
  top_left,      ///< i
  bottom_right,  ///< i + kv_length(b) - q_length(b)
};

struct KeyBound {
  bool upper = true;  ///< j < anchor + constant if upper, else j >= anchor + constant
  Anchor anchor = Anchor::start;

  /// Whether it moves with the query row.
  bool is_diagonal() const { return anchor == Anchor::top_left || anchor == Anchor::bottom_right; }

  friend bool operator==(const KeyBound&, const KeyBound&) = default;
};

struct KeyInterval {
  int64_t lo = 0;
  int64_t hi = 0;
  bool empty() const { return lo >= hi; }
};

/// Keys visible to row `row` of a batch entry with these lengths; constants[n] is that of
/// bounds[n].
KeyInterval visible_keys(const std::vector<KeyBound>& bounds, const std::vector<int64_t>& constants,
                         int64_t row, int64_t q_length, int64_t kv_length);

}  // namespace heddle::problem
