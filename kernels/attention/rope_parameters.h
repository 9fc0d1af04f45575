// What rotary embedding is given: plain types, shared by host and device.
#pragma once

#include "../streaming/arguments.h"
#include "parameters.h"

namespace heddle::attention {

/// problem::Rope::Pairing's values, in its order.
enum class RopePairing : int { halves, interleaved };

/// Rotations come in groups of so many rows, and are made by blocks of so many threads.
inline constexpr int kRotationRows = 64, kRotationThreads = 256;
/// Rotations of a row: half of rope_dim, to the next multiple of 8.
constexpr int rotations_of(int rope_dim) { return (rope_dim + 15) / 16 * 8; }

/// The rotations of rows, as make_rotations writes them.
struct RopeParameters {
  /// Cosines and sines times the rope's scale, as pairs of f16 over a unit of the row, in the order
  /// of RopeSteps: rotations_of(rope_dim) a row.
  const unsigned* rotations;
  const float* units;  ///< of each row: a power of two, 1 for what f16 holds as it is
  int rows;            ///< of a batch entry, a multiple of kRotationRows
  int batch_rows;      ///< from one batch entry to the next: `rows`, or 0 if all share them
  float scale;         ///< of the columns that are not rotated
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
  float* units;
  int batches, rows, length;  ///< rows = length rounded up to kRotationRows
};

/// What is done before an attention that rotates its queries.
struct RotationsBefore {
  RotationArguments queries;
  streaming::RopeArguments keys;
  int key_columns, key_blocks;  ///< blocks that rotate keys: of a group of heads, and all
};

}  // namespace heddle::attention
