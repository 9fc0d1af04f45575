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
  /// The input that holds a position for each entry and row; -1: a block that the node fills with
  /// them, i64.
  int ids = -1;
};

/// X as heads: of 4 dims, [batch, heads, rows, columns], as it is; of 3, [batch, rows, hidden],
/// `heads` side by side.
Status set_heads(Rotation& rotation, const Dims& x, int64_t heads);
Result<Recipe> recipe_of(const Rotation& rotation, Inputs inputs);
/// Refuses positions that the tables do not have.
Status check_positions(const Value& ids, int64_t positions);

}  // namespace heddle::onnxruntime
