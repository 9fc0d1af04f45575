// What rotary embedding is given: plain types, shared by host and device.
#pragma once

#include "../streaming/arguments.h"
#include "parameters.h"

namespace heddle::attention {

/// problem::Rope::Pairing's values, in its order.
enum class RopePairing : int { halves, interleaved };

/// Rotations come in groups of so many rows, and are made by blocks of so many threads.
inline constexpr int kRotationRows = 64, kRotationThreads = 256;

/// The rotations of rows, as make_rotations writes them.
struct RopeParameters {
  /// Cosines and sines as pairs of f16: rope_dim / 2 a row, over a power of two that leaves the
  /// row's largest between 1 and 2.
  const unsigned* rotations;
  const float* scales;  ///< of each row: that power times the rope's scale
  int rows;             ///< of a batch entry, a multiple of kRotationRows
  int batch_rows;       ///< from one batch entry to the next: `rows`, or 0 if all share them
  float scale;          ///< of the columns that are not rotated
};

/// Row s of a batch entry has position s, s + value(batch) or value(batch, s); positions past a
/// table's ends read its first and its last row.
struct RotationArguments {
  /// f32 [positions, rope_dim / 2]: angles, or else cosines and sines.
  const float* angles;
  const float* cosines;
  const float* sines;
  long long first_stride[2], second_stride[2];  ///< of angles or cosines, and of sines
  int table_rows;
  const void* positions;  ///< may be absent
  int positions_are_64_bit, positions_per_row;
  long long position_batch_stride, position_row_stride;
  float scale;
  unsigned* rotations;
  float* scales;
  int batches, rows, length;  ///< rows = length rounded up to kRotationRows
};

/// What is done before an attention that rotates its queries.
struct RotationsBefore {
  RotationArguments queries;
  streaming::RopeArguments keys;
  int key_columns, key_blocks;  ///< blocks that rotate keys: of a group of heads, and all
};

}  // namespace heddle::attention
