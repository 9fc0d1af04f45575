// What the host passes to a forward kernel. The one definition of the layout; the engine mirrors
// it.
#pragma once

#include "../ptx/types.cuh"
#include "visible.cuh"

namespace heddle::attention {

/// An f32 value per query row, in elements: (batch, head, row). Null data: not wanted.
struct RowOutput {
  float* data;
  i64 batch_stride, head_stride, row_stride;

  HEDDLE_DEVICE float* at(int batch, int head, int row) const {
    return data + batch * batch_stride + head * head_stride + row * row_stride;
  }
};

/// How tiles are dealt to the persistent blocks. Heads (batch * heads of them) are cut into
/// sections of `section` whose K and V stay in L2 together; a section's tiles run from its longest
/// rows (last query tile) to its shortest, over its heads.
struct TileOrder {
  i32 q_tiles;   ///< per head
  i32 section;   ///< heads
  i32 total;     ///< batch * heads * q_tiles
  i32 snake;     ///< static order: every second round of blocks runs backwards
  i32* counter;  ///< dynamic order: two zeroed i32, left zeroed; null for static
};

struct ForwardArguments {
  /// Rank 4: (head_dim, row, head, batch). Boxes: q and o 64 columns x 64 rows; k and v 64 columns
  /// x kTileN rows; 128-byte swizzle; zero fill.
  TensorMap q, k, v, o;
  RowOutput log_sum_exp;  ///< natural log
  RowOutput row_max;      ///< maximum score, natural units
  RowOutput row_sum;      ///< sum of exp(score - maximum)
  Bounds bounds;
  TileOrder order;
  i32 batch, heads;
  i32 queries_per_key_head, queries_per_value_head;  ///< query heads that share one K, one V head
  i32 q_length, kv_length;
  float scale;        ///< on the dot product, natural units
  const float* sink;  ///< [heads] logits, with Config::kSink
  /// With Config::kLengths: actual lengths per batch entry, [batch].
  const i32* q_lengths;
  const i32* kv_lengths;
  /// What score expressions read: pointers, strides and scalars in the generated code's own order.
  u64 score[24];
};

}  // namespace heddle::attention
