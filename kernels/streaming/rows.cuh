// Rows that go from one tensor to another, either of which may be ragged.
#pragma once

#include "../ptx/types.cuh"
#include "arguments.h"

namespace heddle::streaming {

HEDDLE_DEVICE i64 integer_at(const void* data, bool is_64_bit, i64 index) {
  return is_64_bit ? static_cast<const i64*>(data)[index] : static_cast<const i32*>(data)[index];
}

/// The first element of a batch entry, and whether `row` lies before the next one.
HEDDLE_DEVICE i64 start_of(const void* offsets, bool is_64_bit, i64 multiplier, i64 row_stride,
                           int batch, int row, bool& exists) {
  const i64 start = integer_at(offsets, is_64_bit, batch) * multiplier;
  const i64 end = integer_at(offsets, is_64_bit, batch + 1) * multiplier;
  // The only row of a tensor has no stride to the next.
  exists = exists && (row_stride == 0 ? start < end : (row + 1) * row_stride <= end - start);
  return start;
}

/// Whether `row` is one of its sequence's.
HEDDLE_DEVICE bool is_within_length(const RowsArguments& args, int batch, int row) {
  if (!args.lengths_cumulative)
    return row < integer_at(args.lengths, args.lengths_are_64_bit, batch);
  const i64 begin = integer_at(args.lengths, args.lengths_are_64_bit, batch);
  const i64 end = integer_at(args.lengths, args.lengths_are_64_bit, batch + 1);
  // Without a sign the difference of any two prefix sums takes 64 bits at most.
  return begin < end && static_cast<u64>(row) < static_cast<u64>(end) - static_cast<u64>(begin);
}

/// Where a row of the first head begins in both, if it exists.
struct RowPlace {
  i64 x, y;
  bool exists;
};
template <bool kRagged>
HEDDLE_DEVICE RowPlace place_of(const RowsArguments& args, int batch, int row) {
  RowPlace at{batch * args.x_stride[0], batch * args.y_stride[0], row < args.length};
  if constexpr (kRagged) {
    if (args.lengths != nullptr) at.exists = at.exists && is_within_length(args, batch, row);
    if (args.x_offsets != nullptr)
      at.x = start_of(args.x_offsets, args.x_offsets_are_64_bit, args.x_multiplier,
                      args.x_stride[2], batch, row, at.exists);
    if (args.y_offsets != nullptr)
      at.y = start_of(args.y_offsets, args.y_offsets_are_64_bit, args.y_multiplier,
                      args.y_stride[2], batch, row, at.exists);
  }
  at.x += row * args.x_stride[2];
  at.y += row * args.y_stride[2];
  return at;
}

}  // namespace heddle::streaming
