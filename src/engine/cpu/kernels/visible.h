// Which keys a query row sees: lengths, bounds, block mask. The contract is problem/keys.h.
#pragma once

#include "engine/cpu/kernels/memory.h"
#include "engine/cpu/kernels/real.h"
#include "problem/keys.h"

namespace heddle::engine::cpu::HEDDLE_CPU_LEVEL {

struct Lengths {
  int64_t q, kv;
};

inline int64_t length_of(const View* lengths, bool cumulative, int64_t b, int64_t extent) {
  if (!lengths) return extent;
  const int64_t stride = lengths->stride[0];
  const int64_t begin = cumulative ? integer_at(*lengths, b * stride) : 0;
  const int64_t end = integer_at(*lengths, (b + cumulative) * stride);
  if (end <= begin) return 0;
  // Prefix sums are whatever memory holds: without a sign their difference takes 64 bits at most.
  const uint64_t length = static_cast<uint64_t>(end) - static_cast<uint64_t>(begin);
  return length < static_cast<uint64_t>(extent) ? static_cast<int64_t>(length) : extent;
}
inline Lengths lengths_of(const AttentionArguments& a, int64_t b) {
  return {length_of(a.q_lengths, a.q_lengths_cumulative, b, a.q_length),
          length_of(a.kv_lengths, a.kv_lengths_cumulative, b, a.kv_length)};
}

inline Interval visible_keys(const AttentionArguments& a, Lengths lengths, int64_t row) {
  Interval keys{0, lengths.kv};
  for (int32_t n = 0; n < a.bound_count; ++n) {
    const Bound& bound = a.bounds[n];
    int64_t at = bound.constant;
    switch (static_cast<problem::Anchor>(bound.anchor)) {
      case problem::Anchor::start:
        break;
      case problem::Anchor::kv_end:
        at += lengths.kv;
        break;
      case problem::Anchor::top_left:
        at += row;
        break;
      case problem::Anchor::bottom_right:
        at += row + lengths.kv - lengths.q;
        break;
    }
    if (bound.upper) {
      keys.hi = smaller(keys.hi, at);
    } else {
      keys.lo = larger(keys.lo, at);
    }
  }
  if (keys.lo >= keys.hi) keys = {0, 0};
  return keys;
}

/// Side of the square tiles of a block mask.
inline constexpr int64_t kBlockMaskTile = 128;

inline bool block_is_visible(const View& mask, int64_t b, int64_t h, int64_t row, int64_t key) {
  const int64_t tile = key / kBlockMaskTile;
  const int64_t at =
      origin(mask, b, h) + row / kBlockMaskTile * mask.stride[2] + tile / 8 * mask.stride[3];
  return (static_cast<uint8_t>(mask.data[at]) >> (tile % 8)) & 1;
}

/// The columns between the first and the last that booleans show of a row.
inline Interval columns_of_mask(const View& boolean_mask, int64_t b, int64_t h, int64_t row,
                                int64_t j0, Interval columns) {
  const char* p = boolean_mask.data + origin(boolean_mask, b, h) + row * boolean_mask.stride[2] +
                  j0 * boolean_mask.stride[3];
  const int64_t step = boolean_mask.stride[3];
  const auto hidden = [&](int64_t j) { return p[j * step] == 0; };
  const auto eight_hidden = [&](int64_t j) { return step == 1 && read_as<int64_t>(p + j) == 0; };
  while (columns.hi - columns.lo >= 8 && eight_hidden(columns.lo)) columns.lo += 8;
  while (columns.lo < columns.hi && hidden(columns.lo)) ++columns.lo;
  while (columns.hi - columns.lo >= 8 && eight_hidden(columns.hi - 8)) columns.hi -= 8;
  while (columns.lo < columns.hi && hidden(columns.hi - 1)) --columns.hi;
  return columns;
}

/// Columns of a block of `keys` keys from j0 on that hold all that the row sees of it: its
/// interval, and of that what lies between the first and the last visible tile of the block mask,
/// and between the first and the last key that booleans show.
inline Interval columns_of_row(const AttentionArguments& a, Interval visible, int64_t b, int64_t h,
                               int64_t row, int64_t j0, int64_t keys) {
  Interval columns{larger(visible.lo - j0, 0), smaller(visible.hi - j0, keys)};
  const auto tile_is_visible = [&](int64_t column) {
    return block_is_visible(*a.block_mask, b, h, row, j0 + column);
  };
  while (a.block_mask && columns.lo < columns.hi && !tile_is_visible(columns.lo))
    columns.lo = ((j0 + columns.lo) / kBlockMaskTile + 1) * kBlockMaskTile - j0;
  while (a.block_mask && columns.lo < columns.hi && !tile_is_visible(columns.hi - 1))
    columns.hi = (j0 + columns.hi - 1) / kBlockMaskTile * kBlockMaskTile - j0;
  return a.boolean_mask ? columns_of_mask(*a.boolean_mask, b, h, row, j0, columns) : columns;
}

/// Sets to -inf what the row does not see of scores[first .. last), whose column 0 is key j0.
inline void hide_invisible(const AttentionArguments& a, Interval visible, int64_t b, int64_t h,
                           int64_t row, int64_t j0, int64_t first, int64_t last, Real* scores) {
  const int64_t lo = larger(first, smaller(visible.lo - j0, last));
  const int64_t hi = larger(lo, smaller(visible.hi - j0, last));
  const Real hidden = -static_cast<Real>(__builtin_inf());
  if (lo > first) fill(scores + first, lo - first, hidden);
  if (last > hi) fill(scores + hi, last - hi, hidden);
  if (!a.block_mask) return;
  for (int64_t j = lo; j < hi;) {
    const int64_t next = smaller(hi, ((j0 + j) / kBlockMaskTile + 1) * kBlockMaskTile - j0);
    if (!block_is_visible(*a.block_mask, b, h, row, j0 + j)) fill(scores + j, next - j, hidden);
    j = next;
  }
}

}  // namespace heddle::engine::cpu::HEDDLE_CPU_LEVEL
