// What rotary embedding is given: plain types, shared by host and device.
#pragma once

#include "parameters.h"

namespace heddle::attention {

/// problem::Rope::Pairing's values, in its order.
enum class RopePairing : int { halves, interleaved };

struct RopeParameters {
  /// f32 [positions, rope_dim / 2], rows `table_stride` elements apart, each on 16 bytes.
  const float* cosines;
  const float* sines;
  long long table_stride;
  float scale;
  int table_rows;  ///< positions past the ends read the first and the last
  /// Absent: row s has position s. Else position s + value(batch), or value(batch, s) itself.
  const void* positions;
  int positions_are_64_bit, positions_per_row;
  long long position_batch_stride, position_row_stride;
};

struct RopeTableArguments {
  const float* angles;
  long long row_stride, column_stride;
  float* cosines;  ///< [rows, columns], as sines
  float* sines;
  int rows, columns;
};

}  // namespace heddle::attention
