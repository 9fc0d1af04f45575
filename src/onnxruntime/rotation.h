// Heads of a node's rows rotated by tables of cosines and sines: what ONNX's RotaryEmbedding and
// com.microsoft's have in common.
#pragma once

#include "onnxruntime/node.h"

namespace heddle::onnxruntime {

struct Rotation {
  /// Which of the node's inputs hold what; the output is its first.
  int x = 0, cosines = 0, sines = 0;
  /// Of X seen as [batch, heads, rows, columns].
  Dims dims, strides;
  /// Of both tables: rows, and half of the columns that are rotated.
  int64_t positions = 0, half = 0;
  bool is_interleaved = false;
  /// Where positions are: for each entry and row in an input; behind the one that an input holds;
  /// or the tables have a row for each entry and row.
  enum class Positions { given, from_start, in_order } by = Positions::given;
  int ids = -1;  ///< that input
};

/// X as heads: of 4 dims, [batch, heads, rows, columns], as it is; of 3, [batch, rows, hidden],
/// `heads` side by side.
Status set_heads(Rotation& rotation, const Dims& x, int64_t heads);
Result<Recipe> recipe_of(const Rotation& rotation, Inputs inputs);
/// Refuses positions that the tables do not have: the one at `index` of position_ids, or all.
Status check_position(int64_t id, int64_t index, int64_t positions);
Status check_positions(const Value& ids, int64_t positions);

}  // namespace heddle::onnxruntime
